# Shellback as an image: worker, supervisor, migration and command line are one program.
#   docker compose build        (docker-compose.yml runs it)
# Everything that is installed comes from the lock files, with hashes.
ARG PYTHON=3.11.13-slim-bookworm

FROM python:${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /source
COPY requirements.lock requirements-dev.lock ./
RUN python -m venv /opt/shellback && /opt/shellback/bin/pip install --require-hashes -r requirements.lock
COPY pyproject.toml README.md alembic.ini ./
COPY app app
COPY shellback shellback
COPY migrations migrations
# The build backend comes from the lock too: its own lines of it, and nothing that they do not name.
RUN awk '/^[^ ]/ {wanted = /^(hatchling|packaging|pathspec|pluggy|tomlkit|trove-classifiers)==/} wanted' \
      requirements-dev.lock >build.lock \
 && python -m venv /build && /build/bin/pip install --require-hashes -r build.lock \
 && /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /opt/shellback/bin/pip install --no-deps --no-index --find-links /wheels shellback \
 && /opt/shellback/bin/pip uninstall --yes pip setuptools

FROM python:${PYTHON}
# The base image has the standard library without bytecode, and our user may not write any: each process compiled it.
RUN python -m compileall -q /usr/local/lib/python3.*/
# What the agent's commands need beyond a shell and Python: docker compose build --build-arg PACKAGES="git make"
ARG PACKAGES=""
RUN if [ -n "$PACKAGES" ]; then \
      apt-get update && apt-get install --yes --no-install-recommends $PACKAGES && rm -rf /var/lib/apt/lists/*; \
    fi
# The two directories are volumes; a new volume takes over owner and mode.
# HOME is neither: programs and libraries take orders from files there, and commands write both.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin shellback \
 && install -d -o shellback -g shellback -m 0700 /var/lib/shellback \
 && install -d -o shellback -g shellback -m 0755 /workspace
COPY --from=build /opt/shellback /opt/shellback
ENV PATH=/opt/shellback/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    SHELLBACK_HOME=/var/lib/shellback \
    WORKSPACE_ROOT=/workspace
# Not the workspace: settings are read from `.env` in the current directory, and that one is the agent's to write.
WORKDIR /
USER shellback
ENTRYPOINT ["shellback"]
CMD ["worker"]
