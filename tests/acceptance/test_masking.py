"""Canaries: random secrets that a process prints in random pieces are seen nowhere but in its log."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import string
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from shellback.client.client import Client
from shellback.exec.core.model import Session
from shellback.storage.tables import audit
from tests.clients import client, known
from tests.commands import facts, shellback, told
from tests.otlp import receiving
from tests.serving import served, token, web
from tests.stage import Stage, stage

COUNT = 500
ALL = string.ascii_letters + string.digits + "+/=_-.~!#%&*,:?@^"
PRINTER = """
import os, random, sys, base64
values = open(sys.argv[1]).read().split()
mode, to = sys.argv[2], int(sys.argv[3])
lines = [f"{n} is {v} so {base64.b64encode(b'u:' + v.encode()).decode()}" for n, v in enumerate(values)]
data = ("\\n".join(lines) + "\\nall is printed\\n").encode()
if mode == "coloured":
    data = data.replace(b" is ", b" is \\x1b[31m").replace(b" so ", b"\\x1b[0m so ")
while data:
    cut = random.randint(1, 400)
    os.write(to, data[:cut])
    data = data[cut:]
"""


def canary(has: str = "") -> str:
    """A secret of 18 to 60 characters that begins and ends with letters."""
    before, after = ("".join(secrets.choice(ALL) for _ in range(8 + secrets.randbelow(20))) for _ in range(2))
    return f"q{before}{has}{after}Z"


CANARIES = [*(canary() for _ in range(COUNT - 5)), *(canary("://") for _ in range(5))]
ENCODED = [base64.b64encode(b"u:" + one.encode())[4:-8].decode() for one in CANARIES]


def seen(text: str | bytes) -> list[str]:
    """The canaries that a text has."""
    data = text.encode() if isinstance(text, str) else text
    return [one for one in [*CANARIES, *ENCODED] if one.encode() in data]


def secret_files(made: Stage) -> None:
    """The canaries where Shellback looks for secrets, and where the program reads them."""
    lines = [f"CANARY_TOKEN_{number}={one}" for number, one in enumerate(CANARIES)]
    (made.workspace / "deploy").mkdir()
    for part in range(10):
        (made.workspace / "deploy" / f".env.{part}").write_text("\n".join(lines[part::10]))
    (made.workspace / "values.bin").write_text("\n".join(CANARIES))
    (made.workspace / "print.py").write_text(PRINTER)
    rules = made.home / "shellback.toml"
    rules.write_text('[[rules]]\neffect = "allow"\nprefix = ["python3", "print.py"]\n')
    rules.chmod(0o600)


@pytest.fixture(scope="module")
def masking() -> Iterator[Stage]:
    with stage(SHELL_TOOL="on") as made:
        secret_files(made)
        made.hire()
        yield made


def asked(made: Stage, text: str, conversation: str) -> str:
    """Have the agent do this, with the approval of a person if it is asked for; all that its conversation has then."""
    item = made.send(text, conversation)

    def answered() -> bool:
        for request in made.requests():
            made.decide(request)
        return bool(made.answers(since=item))

    made.until("the agent has answered", answered)
    return made.history(conversation)


def printing(made: Stage, mode: str = "plain", to: int = 1, tool: str = "execute", **more: object) -> str:
    """Have the agent run the program, and return all that its conversation has then."""
    args = json.dumps({"command": f"python3 print.py values.bin {mode} {to}", **more})
    return asked(made, f"!{tool} {args}", mode)


def over(made: Stage, part: str) -> Session:
    """The session of a command, once its agent has heard of its end: by a wake, or in the turn that started it."""
    ended = made.until("it ends", lambda: next((s for s in made.sessions(live=False) if part in s.command), None))
    made.until("its end was heard", made.at_rest)
    return ended


@pytest.mark.parametrize("mode", ["plain", "coloured"])
def test_no_canary_is_in_the_result_of_a_command(masking: Stage, mode: str) -> None:
    answer = printing(masking, mode)
    assert "[secret CANARY_TOKEN_" in answer
    assert "secrets in the output" in answer
    assert not seen(answer)


def test_no_canary_is_in_standard_error(masking: Stage) -> None:
    printing(masking, "errors", 2, "shell", op="spawn")
    session = over(masking, "errors")
    assert session.separate_stderr
    history = asked(masking, f'!process_log {{"session_id": "{session.id}", "stderr": true}}', "errors")
    assert "[secret CANARY_TOKEN_" in history
    assert not seen(history)


def test_no_canary_is_on_a_screen(masking: Stage) -> None:
    printing(masking, "screen", tool="execute_pty")
    session = masking.session("screen")
    screen = asked(masking, f'!process_screen {{"session_id": "{session.id}"}}', "screen")
    assert "screen of" in screen
    assert "[secret CANARY_TOKEN_" in screen
    assert not seen(screen)


def test_no_canary_is_in_pages_polls_wakes_and_hits(masking: Stage) -> None:
    printing(masking, "paged", background=True)
    session = over(masking, "paged")
    total = (masking.home / "sessions" / session.id / "log").stat().st_size
    one = f'"session_id": "{session.id}"'
    pages = [
        f'!process_log {{{one}, "byte_offset": {secrets.randbelow(total)}, "byte_limit": {most}}}'
        for most in (1, 40, 400, 4_000, 20_000)
        for _ in range(6)
    ]
    lines = [f'!process_log {{"session_id": "{session.id}", "offset": {at}, "limit": 60}}' for at in (-60, 0, 200)]
    poll = f'!process_poll {{"session_id": "{session.id}"}}'
    history = asked(masking, "\n".join((*pages, *lines, poll)), "paged")
    assert "[secret CANARY_TOKEN_" in history
    assert not seen(history)


def test_no_canary_is_in_what_a_watch_tells(masking: Stage) -> None:
    gated = "until [ -e watched ]; do sleep 0.05; done; python3 print.py values.bin plain 1"
    asked(masking, f"!execute {json.dumps({'command': gated, 'background': True})}", "watched")
    wish = json.dumps({"session_id": masking.session("watched").id, "pattern": "[0-9] is q"})
    asked(masking, f"!process_watch {wish}", "watched")
    (masking.workspace / "watched").touch()
    masking.until("the watch has fired", lambda: "[secret CANARY_TOKEN_" in masking.history("watched"))
    assert not seen(masking.history("watched"))


def test_no_canary_is_in_the_output_of_a_shell(masking: Stage) -> None:
    history = printing(masking, "inside", tool="shell", op="execute")
    assert "[secret CANARY_TOKEN_" in history
    assert not seen(history)


def test_no_canary_is_in_what_commands_and_clients_show(masking: Stage) -> None:
    printing(masking, "shown")
    session = masking.session("shown")
    for words in (["-n", "600"], ["-n", "600", "--raw"], ["-f"], ["-n", "600", "--json"], ["--since", "1h"]):
        shown = shellback(masking, "logs", session.id, *words)
        assert "[secret CANARY_TOKEN_" in shown.stdout, words
        assert not seen(shown.stdout), words
    with Client(masking.settings) as client:
        offset, texts = 0, list[str]()
        while (log := client.logs(session.id, offset=offset)).text:
            texts.append(log.text)
            offset = log.next_offset
        assert "[secret CANARY_TOKEN_" in "".join(texts)
        assert not seen("".join(texts))
    assert "[secret CANARY_TOKEN_" in told(masking, "events", "--json").stdout
    for words in (["show", "shown"], ["events"], ["events", "--json"], ["ps", "--all", "--json"], ["audit", "--json"]):
        assert not seen(told(masking, *words).stdout), words


def test_no_canary_is_in_resources_of_mcp(masking: Stage) -> None:
    async def read() -> dict[str, str]:
        async with client(masking, "--conversation", "resources") as one:
            command = "python3 print.py values.bin resources 1"
            session = known(await one.approved("execute_pty", command=command))["session_id"]
            await one.call("process_wait", session_ids=[session])
            listed = (await one.session.list_resources()).resources
            return {str(each.uri): (await one.session.read_resource(each.uri)).model_dump_json() for each in listed}

    texts = asyncio.run(read())
    assert sorted(uri.rpartition("/")[2] for uri in texts) == ["log", "screen"]
    for uri, text in texts.items():
        assert "[secret CANARY_TOKEN_" in text, uri
        assert not seen(text), uri


def test_no_canary_is_in_events_of_ag_ui(masking: Stage) -> None:
    command = json.dumps({"command": "python3 print.py values.bin ag-ui 1"})
    message = {"id": "m1", "role": "user", "content": f"!execute {command}"}

    async def run(base: str, secret: str) -> str:
        given = {"threadId": "ag-ui", "runId": "r1", "messages": [message]}
        async with web(secret) as http:
            return (await http.post(f"{base}/v1/ag-ui", json=given)).text

    with served(masking) as server:
        text = asyncio.run(run(server.base, token(masking, "ag-ui", "--api", "-c", "ag-ui")))
    assert "TOOL_CALL_RESULT" in text
    assert "RUN_FINISHED" in text
    assert "[secret CANARY_TOKEN_" in text
    assert not seen(text)


def test_no_canary_is_in_spans_metrics_and_logs_even_with_their_content() -> None:
    told_of = {"TELEMETRY_CONTENT": "true", "LOG_FORMAT": "json", "LOG_LEVEL": "DEBUG"}
    soon = {"OTEL_BSP_SCHEDULE_DELAY": "200", "OTEL_METRIC_EXPORT_INTERVAL": "500"}
    with receiving() as receiver, stage(OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url, **soon, **told_of) as made:
        secret_files(made)
        worker = made.hire()
        printing(made)
        made.until("the counter", lambda: receiver.points("shellback.secrets"))
        worker.stop()
        log = (made.home / "worker.log").read_bytes()
    sent = b"".join(receiver.raw)
    assert b"[secret CANARY_TOKEN_" in sent
    assert not seen(sent)
    assert not seen(log)
    assert sum(receiver.points("shellback.secrets").values()) > 0


def test_the_log_has_them_all_and_a_person_may_see_them_which_is_audited(masking: Stage) -> None:
    printing(masking, "revealed")
    session = masking.session("revealed")
    raw = (masking.home / "sessions" / session.id / "log").read_bytes()
    assert set(CANARIES) <= set(seen(raw)), "this shows that the others would have been seen"
    shown = shellback(masking, "logs", session.id, "-n", "600", "--reveal")
    assert set(CANARIES) <= set(seen(shown.stdout))
    row = masking.rows(sa.select(audit.c.session_id, audit.c.surface).where(audit.c.event == "revealed"))
    assert row == [(session.id, "cli")]
    assert facts(told(masking, "audit", "-e", "revealed", "--json"))


def test_no_canary_is_in_the_database(masking: Stage) -> None:
    """Histories, mailbox, events, recorded steps, requests, audit: all that any reader gets them from."""
    printing(masking, "kept")
    found = [path for path in masking.home.glob("shellback.db*") if seen(path.read_bytes())]
    assert found == []
    assert b"[secret CANARY_TOKEN_" in b"".join(path.read_bytes() for path in masking.home.glob("shellback.db*"))
    assert not seen((masking.home / "worker.log").read_bytes())


def test_the_audit_counts_what_was_replaced_in_output_of_a_session() -> None:
    with stage() as made:
        secret_files(made)
        worker = made.hire()
        printing(made)
        session = made.session("print.py")
        worker.stop()
        row = facts(told(made, "audit", "-e", "secrets", "--json"))
    assert (row["session_id"], row["conversation_id"], row["facts"]["as"]) == (session.id, "plain", "mask")
    assert row["facts"]["found"] > 50


def test_secrets_off_shows_them_and_warn_counts_them() -> None:
    for mode, told_of in (("off", False), ("warn", True)):
        with stage(SECRETS=mode) as made:
            secret_files(made)
            made.hire()
            history = printing(made)
            assert len(seen(history)) > 50
            assert ("secrets in the output" in history) is told_of
