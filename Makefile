# Everything a clone needs: `make` lists it. Python 3.11 or newer and make are all it takes.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-stamp
UV ?= uv
LOCK := $(UV) pip compile pyproject.toml --extra otel --extra mcp --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --custom-compile-command "make lock" --quiet
LOWEST := $(VENV)/lowest
# Compiled files are kept, whatever the caller's environment says: hundreds of processes import the same modules.
export PYTHONDONTWRITEBYTECODE :=
PIP := -m pip install --quiet --disable-pip-version-check

# A failed test gets a second attempt, and the summary names it (RERUN); more than five of those fail the run.
AGAIN := --reruns 1 -rfEsR

.PHONY: help setup demo quick test test-long test-lowest check docs figures guards bench chaos chaos-quick chaos-syscalls compose-test escape soak polls fuzz lock clean

help: ## list what can be made
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 24

setup: $(STAMP) ## make .venv with everything, from the locked versions

demo: $(STAMP) ## a narrated tour of the whole loop; needs no key and no server
	@$(BIN)/shellback demo $(ARGS)

quick: $(STAMP) ## the unit tests, and in the time left those of packages that changed (45 s); ARGS= goes to pytest
	@$(BIN)/python -m tests.quick $(ARGS)

test: $(STAMP) ## the tests; ARGS= goes to pytest, EXEC_TESTS_STRICT=1 turns a skip into a failure
	@$(BIN)/python -m pytest -n 6 --dist worksteal $(AGAIN) -m "not long" $(ARGS)

test-long: $(STAMP) ## the tests of whole programs, containers, series of kills, and parts together
	@$(BIN)/python -m pytest -n 4 --dist worksteal $(AGAIN) -m long $(ARGS)

test-lowest: $(LOWEST)/.stamp ## unit and conformance tests with the oldest versions that pyproject.toml allows
	@$(LOWEST)/bin/python -m pytest -n 6 --dist worksteal $(AGAIN) tests/unit tests/conformance $(ARGS)

check: $(STAMP) ## lint, format, types, and which module may import which
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@NODE_OPTIONS=--max-semi-space-size=64 $(BIN)/pyright # a larger young generation takes a quarter less time
	@$(BIN)/lint-imports

docs: $(STAMP) ## build the documentation site into build/site; a broken link or anchor fails it
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet $(ARGS)

figures: $(STAMP) ## packages, layers, imports, branches on tool names, lines; ARGS='--json TREE' of any checkout
	@$(BIN)/python -m tests.figures $(ARGS)

bench: $(STAMP) ## figures beside their baselines; fails by name when one misses
	@$(BIN)/python -m benchmarks $(ARGS)

chaos: $(STAMP) ## kill -9 everywhere, counted from outside (hours); fails when anything is lost or doubled; ARGS=--help
	@$(BIN)/python -m chaos $(ARGS)

chaos-quick: $(STAMP) ## a part of it, in minutes
	@$(BIN)/python -m chaos --quick $(ARGS)

chaos-syscalls: $(STAMP) ## kills and errors at every system call of supervisor and keeper (needs strace); ARGS=--help
	@$(BIN)/python -m chaos.syscalls $(ARGS)

escape: $(STAMP) ## attempts to get out of the sandboxes, each shown to work without one; ARGS=--help
	@$(BIN)/python -m tests.escape --backend all $(ARGS)
	@$(BIN)/python -m pytest -q -n 2 tests/escape tests/integration/backends/test_homes.py tests/integration/test_orders.py

compose-test: $(STAMP) ## build the image, run docker-compose.yml, kill -9 each container; COMPOSE= names a compose; ARGS=--help
	@$(BIN)/python -m tests.compose $(if $(COMPOSE),--compose "$(COMPOSE)") $(ARGS)

guards: $(STAMP) ## take each guard away in a copy of the tree; fails where no test notices
	@$(BIN)/python -m tests.guards $(ARGS)

soak: $(STAMP) ## 2,000 processes while workers, supervisor and Postgres are killed at random (8 minutes); ARGS=--help
	@$(BIN)/python -m chaos.soak $(ARGS)

polls: $(STAMP) ## how soon an item has its turn while 20 processes enqueue (2 minutes)
	@$(BIN)/python -m chaos.polls $(ARGS)

fuzz: $(STAMP) ## property tests, as long as asked: FUZZ_SECONDS=600 for all parts together; ARGS=--help
	@$(BIN)/python -m chaos.fuzz --seconds $(or $(FUZZ_SECONDS),600) $(ARGS)

lock: ## make the three lock files anew (needs uv)
	$(LOCK) --upgrade -o requirements.lock
	$(LOCK) --upgrade --group dev -c requirements.lock -o requirements-dev.lock
	$(LOCK) --upgrade --group test --resolution lowest-direct -o requirements-lowest.lock

clean: ## remove what setup made
	rm -rf $(VENV)

# Made again when a lock or the package's own description changes; otherwise nothing is started at all.
$(STAMP): requirements-dev.lock pyproject.toml
	@python= bare=; \
	for candidate in $${PYTHON:-} python3.13 python3.12 python3.11 python3; do \
		path=$$(command -v "$$candidate") || continue; \
		"$$path" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
		if "$$path" -c 'import ensurepip, venv' 2>/dev/null; then python=$$path; break; fi; \
		bare=$${bare:-$$path}; \
	done; \
	if [ -z "$$python" ] && [ -n "$$bare" ]; then \
		version=$$("$$bare" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
		echo "setup: $$bare cannot make virtual environments (Debian packages that apart): apt install python$$version-venv" >&2; \
		exit 2; \
	fi; \
	if [ -z "$$python" ]; then \
		echo "setup: no Python 3.11 or newer found; install one, or say where it is: make setup PYTHON=/path/to/python3" >&2; \
		exit 2; \
	fi; \
	if ! $(BIN)/python -c 'import pip' 2>/dev/null; then \
		echo "setup: making $(VENV) with $$python"; \
		"$$python" -m venv --clear $(VENV); \
	fi; \
	echo "setup: installing locked versions"; \
	$(BIN)/python $(PIP) --no-deps --require-hashes -r requirements-dev.lock; \
	$(BIN)/python $(PIP) --no-deps --no-build-isolation -e .; \
	touch $@

$(LOWEST)/.stamp: $(STAMP) requirements-lowest.lock
	@$(BIN)/python -m venv --clear $(LOWEST)
	@$(LOWEST)/bin/python $(PIP) --no-deps --require-hashes -r requirements-lowest.lock
	@$(LOWEST)/bin/python $(PIP) --no-deps --no-build-isolation -e .
	@touch $@
