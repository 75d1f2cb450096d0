"""The first page of the console: its time and size when much waits, how soon it is told, and its cost at rest."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final

import sqlalchemy as sa

from benchmarks.console import VIEWERS, Console, console, looking
from benchmarks.harness import Bench, Figure, Options, Reading, absent, ms
from benchmarks.loop import cpu_s

WAITING: Final = 500
SHOWN: Final = 50
REST_S: Final = 20.0
APART_S: Final = 0.3
"""Between two requests: longer than pages rest between two things that they are told."""
SHA: Final = hashlib.sha256(b"").hexdigest()
COUNTED: Final = """
import os, runpy, sys
import sqlalchemy as sa
count, fd = 0, os.open(sys.argv.pop(1), os.O_WRONLY)
@sa.event.listens_for(sa.Engine, "before_cursor_execute")
def note(conn, cursor, statement, *rest):
    global count
    count += not statement.startswith(("BEGIN", "COMMIT"))
    os.pwrite(fd, str(count).encode(), 0)
runpy.run_module("shellback", run_name="__main__")
"""
"""A program that is `shellback` and keeps in a file how many queries it has made."""
_numbers = itertools.count()


def _ask(on: Console, conversation: str) -> str:
    """Have a call wait for a person, as one of a sandbox does; the id of the request."""
    from shellback.mcp_server import requests
    from shellback.work.approvals.asking import Proposed
    from shellback.work.notices.notices import SILENT
    from shellback.work.queue import mailbox

    number, workspace = next(_numbers), str(on.where.workspace)
    command = f"make -j4 test > out-{number}.log"
    display = {
        "command": command,
        "executables": [{"name": "make", "path": "/usr/bin/make", "size": 240192, "sha256": SHA}],
        "scripts": [{"name": "Makefile", "path": f"{workspace}/Makefile", "size": 4031, "sha256": SHA}],
        "unbound": [], "shell": "/bin/bash", "cwd": workspace, "env": {}, "timeout_s": 600.0,
        "keep_stdin_open": False, "separate_stderr": False, "background": False, "backend": "bubblewrap",
        "profile": "work",
        "mounts": {
            "readable": ["/usr", "/opt", "/etc (parts)"], "writable": [workspace],
            "private": ["/tmp", "/var/tmp", "/home", "/run", "/dev/shm"], "view": SHA,
        },
        "limits": {
            "processes": 1024, "file_bytes": 17179869184, "memory_bytes": 12616466432, "data_bytes": 0,
            "scratch_bytes": 1073741824, "log_bytes": 67108864,
        },
        "network": False, "secrets": [], "uid": 65534, "lifetime": "conversation", "tier": "read_write",
        "reason": "make runs programs that are not known",
        "segments": [{"text": command, "tier": "read_write", "reason": "make runs programs that are not known"}],
        "touches": [f"{workspace}/out-{number}.log"], "secret_paths": [],
    }  # fmt: skip
    call = Proposed(
        call_key=f"bench {number}", tool_call_id=str(number), tool_name="execute", args={"command": command},
        display=display, digest=hashlib.sha256(command.encode()).hexdigest(),
    )  # fmt: skip
    on.place.database.write_now(requests.opened, conversation, on.place.host_id)
    turn = f"{mailbox.CONNECTION}{conversation}"
    asked = on.place.database.write_now(
        requests.asked, conversation, turn, call, ttl_s=3600.0, outbox=SILENT, limit=WAITING
    )
    return asked.id


def first_page(options: Options) -> Mapping[str, Reading]:
    """From the request of the page until all of it is here."""
    with console(options) as on, contextlib.closing(on.browser.connection()) as web:
        for number in range(WAITING):
            _ask(on, f"c{number % SHOWN}")
        taken, size = list[float](), 0
        for number in range(-3, options.samples(50)):
            began = time.perf_counter()
            web.request("GET", "/console/", headers=on.browser.headers)
            body = web.getresponse().read()
            if number >= 0:
                taken.append(time.perf_counter() - began)
            if (cards := body.count(b'id="request-')) != SHOWN:
                raise RuntimeError(f"the page shows {cards} requests")
            size = len(body)
    note = f"p95 {ms(statistics.quantiles(taken, n=20)[-1]):.0f} ms"
    return {
        "first page": Reading(measured=ms(statistics.median(taken)), note=note),
        "first page size": Reading(measured=size / 1000),
    }


def told(options: Options) -> Mapping[str, Reading]:
    """From before the commit of a request until an open page in Chromium shows it, among others."""
    from playwright.sync_api import sync_playwright

    from shellback.exec.core.runner import found
    from shellback.storage.tables import approvals

    if (program := found("chromium")) is None:
        return absent(TOLD, "chromium is not here")
    with console(options) as on, sync_playwright() as playwright:
        for _ in range(SHOWN - 1):
            _ask(on, "others")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        context = browser.new_context()
        name, _, secret = on.browser.cookie.partition("=")
        context.add_cookies([{"name": name, "value": secret, "url": on.browser.base}])
        page, taken = context.new_page(), list[float]()
        page.goto(f"{on.browser.base}/console/")
        page.wait_for_selector("article")
        for number in range(-3, options.samples(100)):
            time.sleep(APART_S)
            began = time.perf_counter()
            asked = _ask(on, "new")
            page.wait_for_selector(f"article[id^=request-{asked}]")
            if number >= 0:
                taken.append(time.perf_counter() - began)
            on.place.database.write_now(sa.Connection.execute, approvals.delete().where(approvals.c.id == asked))
        browser.close()
    return {
        "request on an open page": Reading(
            measured=ms(statistics.quantiles(taken, n=20)[-1]), note=f"median {ms(statistics.median(taken)):.0f} ms"
        )
    }


def idle(database: str) -> Callable[[Options], Mapping[str, Reading]]:
    """The server alone, while pages are open and nothing happens."""

    def run(options: Options) -> Mapping[str, Reading]:
        from tests.databases import TEMPLATE, NoPostgres, serving_postgres

        count = options.directory / f"queries of {database}"
        count.touch()
        counting = [sys.executable, "-c", COUNTED, str(count)]
        with contextlib.ExitStack() as stack:
            environ: dict[str, str] = {}
            if database == "Postgres":
                try:
                    server = stack.enter_context(serving_postgres(durable=True))
                except NoPostgres as error:
                    return absent(_idle(database), str(error))
                environ["DATABASE_URL"] = server.url(server.create(TEMPLATE))
            on = stack.enter_context(console(options, counting, **environ))
            stack.enter_context(looking(on.browser, "/console/changes?of=conversations", VIEWERS))
            time.sleep(1.0)  # what they are told at first
            seconds = REST_S / 4 if options.quick else REST_S
            began, cpu, queries = time.monotonic(), cpu_s(on.pid), int(count.read_text())
            time.sleep(seconds)
            took = time.monotonic() - began
            return {
                f"idle console {database}": Reading(measured=100 * (cpu_s(on.pid) - cpu) / took),
                f"queries at rest {database}": Reading(measured=(int(count.read_text()) - queries) / took),
            }

    return run


def _idle(database: str) -> tuple[Figure, ...]:
    says = f"the server with {VIEWERS} open pages, {database}"
    return (
        Figure(name=f"idle console {database}", says=f"of a core, {says}", unit="%", limit=2.0),
        Figure(name=f"queries at rest {database}", says=f"in all, {says}", unit="a second", limit=1.0),
    )


TOLD: Final = (
    Figure(
        name="request on an open page",
        says=f"a request among {SHOWN}, from before its commit until a page in Chromium has it, 95th percentile",
        limit=300.0,
    ),
)
BENCHES: Final = (
    Bench(
        name="first page",
        run=first_page,
        figures=(
            Figure(
                name="first page",
                says=f"the first page of the console, {SHOWN} of {WAITING} requests, from its request to its end",
                limit=150.0,
            ),
            Figure(name="first page size", says="the same page", unit="KB", limit=100.0),
        ),
    ),
    Bench(name="open page", run=told, figures=TOLD),
    *(Bench(name=f"console at rest {one}", run=idle(one), figures=_idle(one)) for one in ("SQLite", "Postgres")),
)
