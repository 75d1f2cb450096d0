"""A named workspace has settings of its own: they hold for its conversations, and for no other."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.checks import program
from shellback.client.deciding import Deciding
from shellback.exec.backends.container_backend import ContainerBackend
from shellback.exec.core.base import Found
from shellback.exec.core.errors import PolicyUnusable, WorkspaceUnusable
from shellback.exec.policy.rules.named import LISTED as LISTS
from shellback.exec.policy.rules.named import OWN
from shellback.mcp_server.answer import Asked
from shellback.settings import Settings
from shellback.storage.tables import audit
from shellback.wiring import wiring
from shellback.wiring.choice import choose
from shellback.wiring.spaces import bound
from shellback.wiring.views import Views
from shellback.work.approvals import approvals
from shellback.work.approvals.reception import Reception
from shellback.work.errors import InvalidRequest
from tests import sandboxes
from tests.bound import added, begun, called, connected
from tests.clients import client, text_of
from tests.commands import assert_refused, facts, shellback, told
from tests.consoles import asked
from tests.podmans import contained
from tests.stage import Stage, stage

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[3]

BOXED = 'backend = "bubblewrap"\n'
LISTED = 'network = "list"\nhosts = ["example.org"]\n'


@pytest.fixture
def on() -> Generator[Stage]:
    """Commands run on the host, unless a workspace says otherwise."""
    sandboxes.needed()
    with stage() as made_one:
        yield made_one


@pytest.fixture
def canned() -> Generator[Stage]:
    with contained("podman") as made_one:
        yield made_one


@pytest.fixture
def either(database_url: str) -> Generator[Stage]:
    """The same on each database."""
    with stage(database_url) as made_one:
        yield made_one


def own(on: Stage, name: str, *lines: str) -> Path:
    """A named workspace with these settings of its own, beside those that are there."""
    path = on.root / name
    if not path.exists():
        added(on, name)
    file = on.home / "shellback.toml"
    kept = told(on, "workspaces", "remove", name, "--force") and file.read_text()
    file.write_text(f'{kept}\n[workspaces.{name}]\npath = "{path}"\n{"".join(lines)}')
    return path


async def shown(on: Stage, calls: Any, talk: str, **args: Any) -> dict[str, Any]:
    """What a person would approve of a command, without one."""
    _, display = await calls.tools_of.propose(talk, "execute", {"command": "touch made", **args})
    return display


async def test_backend_limits_and_network_are_those_of_the_workspace(on: Stage) -> None:
    limits = f"sandbox_tmp_bytes = {2**21}\nsandbox_processes = 64\nforeground_timeout = 7\nlog_bytes = 70000\n"
    site = own(on, "site", BOXED, LISTED, limits)
    shut = own(on, "shut", BOXED)
    added(on, "plain")
    for talk, name in (("site", "site"), ("shut", "shut"), ("plain", "plain"), ("main", "default")):
        begun(on, talk, name)
    line = "df --output=size -B1 /tmp | tail -n 1; echo proxy $HTTPS_PROXY.; echo over > made"
    async with connected(on) as calls:
        for talk, proxy in (("site", "proxy http"), ("shut", "proxy .\n"), ("plain", "proxy .\n")):
            done = await called(on, calls, talk, "execute", key="e", command=line)
            assert proxy in done.texts[0], done.texts
            assert (f"{2**21}\n" in done.texts[0]) is (talk == "site"), done.texts
        seen = {talk: await shown(on, calls, talk) for talk in ("site", "shut", "plain", "main")}
    assert {one.conversation_id: one.backend for one in on.sessions()} == {
        "site": "bubblewrap",
        "shut": "bubblewrap",
        "plain": "host",
    }
    assert (seen["site"]["workspace"], seen["shut"]["workspace"]) == (f"site ({site})", f"shut ({shut})")
    assert {talk: one["network"] for talk, one in seen.items()} == {
        "site": ["example.org"],
        "shut": False,
        "plain": True,
        "main": True,
    }
    assert [talk for talk, one in seen.items() if one["timeout_s"] == 7.0] == ["site"]
    assert [talk for talk, one in seen.items() if one["limits"]["log_bytes"] == 70000] == ["site"]
    assert [talk for talk, one in seen.items() if one["limits"].get("processes") == 64] == ["site"]


async def test_a_workspace_takes_from_a_process_in_a_sandbox_what_it_does_not_say_itself(on: Stage) -> None:
    own(on, "bare", 'backend = "host"\n')
    own(on, "shut", 'network = "off"\n')
    for name in ("bare", "shut"):
        begun(on, name, name)
    async with connected(on, BACKEND="bubblewrap", NETWORK="on") as calls:
        for talk in ("bare", "shut", "plain"):
            await called(on, calls, talk, "execute", key="e", command="touch made")
        seen = {talk: (await shown(on, calls, talk))["network"] for talk in ("bare", "shut", "plain")}
    assert {one.conversation_id: one.backend for one in on.sessions()} == {
        "bare": "host",
        "shut": "bubblewrap",
        "plain": "bubblewrap",
    }
    assert seen == {"bare": True, "shut": False, "plain": True}


def test_containers_of_two_engines_are_said_by_doctor_before_a_call_is_refused(
    on: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def works(_: ContainerBackend) -> Found:
        return Found(ok=True)

    monkeypatch.setattr(ContainerBackend, "probe", works)
    own(on, "site", 'backend = "docker"\n')
    own(on, "plain", BOXED)
    for backend, state in (("podman", "fail"), ("docker", "ok"), ("host", "ok")):
        settings = Settings.load({**on.environ, "BACKEND": backend})
        checks = {one.name: one for one in program.sandbox(settings)}
        assert (checks["workspace site"].state, checks["workspace plain"].state) == (state, "ok"), checks
        if state == "fail":
            assert "BACKEND=docker cannot be had beside containers of podman" in checks["workspace site"].text
            assert "give all workspaces the same one of both" in checks["workspace site"].text


async def test_a_conversation_has_as_many_live_sessions_as_its_workspace_says(either: Stage) -> None:
    own(either, "one", "sessions_per_conversation = 1\n")
    own(either, "none", "log_bytes = 70000\n")
    for name in ("one", "none"):
        begun(either, name, name)
    waits: dict[str, Any] = {"command": "sleep 600", "background": True}
    async with connected(either, SESSIONS_PER_CONVERSATION="2") as calls:
        for talk, most in (("one", 1), ("none", 2), ("plain", 2)):
            done = [await called(either, calls, talk, "execute", key=f"{key}", **waits) for key in range(most + 1)]
            assert [one.failed for one in done] == [False] * most + [True], talk
            assert f"{most} live sessions and {most} is the limit" in done[-1].texts[0]


def test_a_turn_may_use_what_its_workspace_says(either: Stage) -> None:
    bounds = {"short": "turn_max_requests = 2", "cheap": "turn_max_tokens = 1000", "quick": "turn_max_seconds = 1"}
    for name, line in bounds.items():
        own(either, name, f"{line}\n")
    either.hire(OFFLINE_SECONDS="1.1")
    say = "\n".join(["!process_list {}"] * 2 + [f"hello {'all ' * 1000}"])
    items = {
        name: either.send(say, f"in.{name}", workspace=bound(either.settings, name)) for name in (*bounds, "default")
    }
    ends = {name: either.ended(item) for name, item in items.items()}
    assert {name: (end["error"] or "").partition(":")[0] for name, end in ends.items()} == {
        "short": "UsageLimitExceeded",
        "cheap": "UsageLimitExceeded",
        "quick": "OutOfTime",
        "default": "",
    }


async def test_a_workspace_hides_and_masks_the_secrets_that_it_lists(on: Stage) -> None:
    """In its sandboxes they are not there; what they hold is masked in each."""
    data = on.root / "data"
    data.mkdir()
    (data / "key").write_text("TOKEN=a-value-that-is-1secret2\n")
    (data / "plain").write_text("nothing\n")
    shown = f'sandbox_readable = "{data}"\n'
    places = {
        "site": own(on, "site", BOXED, shown, f'secret_paths = "{data}/key"\n'),
        "open": own(on, "open", BOXED, shown),
    }
    for name in places:
        begun(on, name, name)
    line = f"cat {data}/plain; wc -l {data}/key; tr a-z A-Z < {data}/key; touch made"
    async with connected(on) as calls:
        said = {name: (await called(on, calls, name, "execute", key="e", command=line)).texts[0] for name in places}
        echo = await called(on, calls, "open", "execute", key="m", command=f"cat {data}/key; touch made")
    assert "TOKEN=[secret TOKEN]" in echo.texts[0]
    assert "A-VALUE" in said["open"]
    assert "A-VALUE" not in said["site"]
    for name, place in places.items():
        verdict = facts(told(on, "policy", "check", "--cwd", str(place), f"cat {data}/key"))["verdict"]
        assert verdict == ("needs_approval" if name == "site" else "read_only")


async def test_two_keys_are_those_of_the_workspace(on: Stage) -> None:
    """A command that only reads runs without a person in a sandbox, and where a workspace says so."""
    own(on, "site", BOXED)
    own(on, "asks", BOXED, 'auto_approve = "off"\n')
    for name in ("site", "asks"):
        begun(on, name, name)
    async with connected(on) as calls:
        for talk in ("site", "asks", "plain"):
            await called(on, calls, talk, "execute", key="e", command="ls")
    query = sa.select(audit.c.conversation_id).where(audit.c.event == "auto_approved")
    assert on.scalars(query) == ["site"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((BOXED,), ('backend = "host"\n',)),
        ((BOXED, LISTED), (BOXED, 'network = "list"\nhosts = ["example.net"]\n')),
        ((BOXED, LISTED), (BOXED,)),
        ((BOXED, "sandbox_processes = 64\n"), (BOXED, "sandbox_processes = 65\n")),
        ((BOXED, "log_bytes = 70000\n"), (BOXED, "log_bytes = 70001\n")),
    ],
)
async def test_an_approval_holds_only_under_the_settings_that_the_workspace_had(
    on: Stage, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    own(on, "site", *before)
    begun(on, "talk", "site")
    call = Asked(client="tester", id="1", tool="execute", args={"command": "touch here"})
    async with connected(on) as calls:
        waiting = asyncio.create_task(calls.connected("talk", name="talk").call(call))
        request = await asyncio.to_thread(on.pending, "talk")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.to_thread(on.decide, request)
    own(on, "site", *after)
    async with connected(on) as calls:
        with pytest.raises(InvalidRequest, match="what the call would do has changed"):
            await calls.connected("talk", name="talk").call(call)
    assert on.sessions() == []
    assert "used" not in on.scalars(sa.select(audit.c.event))


async def test_a_process_runs_nothing_under_settings_that_the_file_does_not_have_any_more(on: Stage) -> None:
    own(on, "site", BOXED, LISTED)
    own(on, "late")
    for name in ("site", "late"):
        begun(on, name, name)
    async with connected(on) as calls:
        for talk in ("site", "late"):
            assert not (await called(on, calls, talk, "execute", key="a", command="true")).failed
        own(on, "site", BOXED)
        own(on, "late", BOXED)
        for talk in ("site", "late"):
            refused = await called(on, calls, talk, "execute", key="b", command="touch stray")
            assert f"workspace {talk} has got other settings since this process began" in refused.texts[0]
        own(on, "site", BOXED, LISTED)
        assert not (await called(on, calls, "site", "execute", key="c", command="true")).failed
        # Under another name, hosts would be read from another table.
        file = on.home / "shellback.toml"
        file.write_text(file.read_text().replace("workspaces.site", "workspaces.same"))
        begun(on, "same", "same")
        refused = await called(on, calls, "same", "execute", key="a", command="touch stray")
        assert "workspace same has got other settings" in refused.texts[0]
    async with connected(on) as calls:
        for talk in ("late", "same"):
            assert not (await called(on, calls, talk, "execute", key="d", command="true")).failed
    assert {one.conversation_id: one.backend for one in on.sessions() if one.conversation_id != "plain"} == {
        "site": "bubblewrap",
        "late": "bubblewrap",
        "same": "bubblewrap",
    }
    assert not list(on.root.glob("*/stray"))


async def test_a_workspace_whose_backend_cannot_be_had_is_named_and_the_others_work(on: Stage) -> None:
    own(on, "site", LISTED)
    own(on, "boat", 'backend = "podman"\npodman_image = "/nowhere"\n')
    for name in ("site", "boat"):
        begun(on, name, name)
    causes = {"site": "commands there cannot be held to NETWORK=list", "boat": "BACKEND=podman cannot be used here"}
    async with connected(on) as calls:
        for talk, cause in causes.items():
            refused = await called(on, calls, talk, "execute", key="a", command="touch stray")
            assert f"workspace {talk}: " in refused.texts[0]
            assert cause in refused.texts[0]
        assert not (await called(on, calls, "plain", "execute", key="a", command="true")).failed
    checked = {one["name"]: one for one in facts(shellback(on, "doctor", "--json"), 2)["checks"]}
    on.hire()
    log = on.home / "worker.log"
    for name, cause in causes.items():
        assert checked[f"workspace {name}"]["state"] == "fail"
        assert cause in checked[f"workspace {name}"]["text"]
        said = f"commands cannot run in workspace {name}: "
        # Beside the start, because a trial may hang.
        on.until(f"the worker says of {name} that", lambda said=said: said in log.read_text())
    assert not list(on.root.glob("*/stray"))


async def test_each_directory_of_a_conversation_has_the_settings_of_its_workspace(on: Stage) -> None:
    own(on, "each", "per_conversation = true\n", BOXED)
    begun(on, "one", "each")
    async with connected(on) as calls:
        done = await called(on, calls, "one", "execute", key="a", command="pwd; touch made")
        assert done.texts[0].startswith(f"{on.root / 'each' / 'one'}\n")
    assert [one.backend for one in on.sessions()] == ["bubblewrap"]


async def test_a_server_for_one_workspace_has_its_settings_and_takes_up_what_runs_in_others(on: Stage) -> None:
    site = own(on, "site", BOXED, 'network = "ask"\n')
    begun(on, "talk", "site")
    begun(on, "plain", "default")
    async with connected(on) as calls:
        assert [one for one in calls.beside if isinstance(one, Reception)]
        run = await called(on, calls, "plain", "execute", key="bg", command="sleep 600", background=True)
    views = Views(on.settings)
    with wiring.mcp_calls(on.where, choose(views.at(site), site).backend, bound(on.settings, "site")) as calls:
        await calls.start()
        done = await called(on, calls, "talk", "execute", key="a", command="echo .$HTTPS_PROXY; touch made")
        assert done.texts[0].startswith(".http")
        with pytest.raises(InvalidRequest, match="works in workspace default since its start, not in site"):
            await called(on, calls, "plain", "execute", key="b", command="touch stray")
        await calls.stop()
    async with connected(on) as calls:
        ended = await called(on, calls, "plain", "process_kill", key="k", session_id=run.facts["session_id"])
        assert not ended.failed, ended.texts
    assert {one.conversation_id: one.backend for one in on.sessions()} == {"talk": "bubblewrap", "plain": "host"}


async def test_a_client_of_one_workspace_works_by_its_settings(on: Stage) -> None:
    site = own(on, "site", BOXED)
    async with client(on, "--workspace", "site") as one:
        # Only a sandbox lets it run without a person.
        assert text_of(await one.session.call_tool("execute", {"command": "pwd"})).startswith(f"{site}\n")
    assert [session.backend for session in on.sessions()] == ["bubblewrap"]


def test_rules_for_a_call_are_made_by_the_settings_of_its_workspace(on: Stage) -> None:
    data = on.root / "data"
    data.mkdir()
    site = own(on, "site", BOXED, f'sandbox_readable = "{data}"\n')
    begun(on, "site", "site")
    command = f"cat {data}/a; touch b"
    display = {"command": command, "cwd": str(site), "backend": "bubblewrap", "profile": "workspace-write"}
    request = replace(asked(on, "site", command), display=display)
    with wiring.enqueuing(on.where) as enqueuer:
        deciding = Deciding(where=on.where, enqueuer=enqueuer, by="ada", surface="cli")
        # What the sandbox shows may be read without a rule.
        assert [rule.match.prefix for rule in deciding.rules(request)] == [("touch", "b")]


async def test_containers_are_those_of_one_workspace_beside_the_host(canned: Stage) -> None:
    on = canned
    place = own(on, "boat", 'backend = "podman"\nsandbox_processes = 99\n')
    await asyncio.to_thread(place.chmod, 0o775)
    begun(on, "talk", "boat")
    async with connected(on, BACKEND="host") as calls:
        for talk, cwd in (("talk", "/workspace\n"), ("plain", f"{on.workspace}\n")):
            done = await called(on, calls, talk, "execute", key="a", command="pwd; touch made")
            assert done.texts[0].startswith(cwd), done.texts
        run = await called(on, calls, "talk", "execute", key="bg", command="echo up; sleep 600", background=True)
    async with connected(on, BACKEND="host") as calls:
        seen = await called(on, calls, "talk", "process_log", key="l", session_id=run.facts["session_id"])
        assert seen.texts[0].startswith("up\n")
        await called(on, calls, "talk", "process_kill", key="k", session_id=run.facts["session_id"])
        assert (await shown(on, calls, "talk"))["limits"]["processes"] == 99
    assert {one.conversation_id: one.backend for one in on.sessions()} == {"talk": "podman", "plain": "host"}
    assert (place / "made").exists()
    assert (on.workspace / "made").exists()


VALUES = {"one": "a-value-of-one-1111", "two": "a-longer-value-of-two-2222222", "all": "a-value-of-all-33"}


def credential(on: Stage, name: str, hosts: str, workspaces: str = "") -> str:
    """The table of a credential whose value is in a file that sandboxes could read."""
    file = on.root / "readable" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(VALUES[name])
    file.chmod(0o644)
    only = f"workspaces = [{workspaces}]\n" if workspaces else ""
    variable = "ALL" if name == "all" else "TOKEN"
    return f'[credentials.{name}]\nfile = "{file}"\nhosts = ["{hosts}"]\nvariable = "{variable}"\n{only}'


async def test_a_credential_holds_in_the_workspaces_that_it_names_and_no_other_sees_its_file(on: Stage) -> None:
    web, api = added(on, "web"), added(on, "api")
    file = on.home / "shellback.toml"
    file.write_text(
        f'[network]\nhosts = ["example.org", "example.net"]\n[workspaces]\nweb = "{web}"\n'
        f'[workspaces.api]\npath = "{api}"\nhosts = ["example.org"]\n'
        + credential(on, "one", "example.org", '"web"')
        + credential(on, "two", "example.org", '"api", "default"')
        + credential(on, "all", "example.net")
    )
    has = {"web": ["one", "all"], "api": ["two"], "default": ["two", "all"]}
    for name in has:
        begun(on, name, name)
    listed = {"BACKEND": "bubblewrap", "NETWORK": "list", "SANDBOX_READABLE": str(on.root / "readable")}
    async with connected(on, **listed, SECRETS="off") as calls:
        for talk, names in has.items():
            line = f"echo .$TOKEN.$ALL.; cat {on.root}/readable/*; touch made"
            said = (await called(on, calls, talk, "execute", key="e", command=line)).texts[0]
            token, every = said.partition("\n")[0].strip(".").split(".") if "all" in names else (said[1:], "")
            assert len(token.partition(".")[0]) == len(VALUES[names[0]])
            assert len(every) == len(VALUES["all"] if "all" in names else "")
            assert not [value for value in VALUES.values() if value in said], said
            seen = (await shown(on, calls, talk))["secrets"]
            assert [one.partition(" ")[0] for one in seen] == names
    assert "web: its own settings: credentials one all" in told(on, "workspaces", "list").stdout
    for before, after, cause in (
        ('"web"]', '"wob"]', "workspaces: there is no workspace 'wob'"),
        ('"api", "default"]', '"web", "api"]', "hosts: 'example.org' has one already"),
        ('hosts = ["example.org"]\n[cred', 'hosts = ["example.com"]\n[cred', "add it to hosts of [workspaces.api]"),
    ):
        text = file.read_text()
        assert before in text
        file.write_text(text.replace(before, after, 1))
        assert_refused(await asyncio.to_thread(shellback, on, "worker", BACKEND="bubblewrap", NETWORK="list"), cause)
        file.write_text(text)


def test_a_worker_runs_turns_in_the_backend_of_their_workspace(on: Stage) -> None:
    own(on, "site", BOXED)
    on.hire()
    for talk, more in (("shop", ("-w", "site")), ("plain", ())):
        facts(shellback(on, "send", "-c", talk, *more, "$ touch made", "--json"))
        on.approve(talk)
        on.until("the answer", lambda talk=talk: on.answers(conversation=talk))
    assert {one.conversation_id: one.backend for one in on.sessions()} == {"shop": "bubblewrap", "plain": "host"}
    assert "its own: backend bubblewrap" in told(on, "conversations", "show", "shop").stdout
    assert "its own" not in told(on, "conversations", "show", "plain").stdout
    assert "site: its own settings: backend bubblewrap" in told(on, "workspaces", "list").stdout
    (one,) = (one for one in facts(told(on, "workspaces", "list", "--json")) if one["name"] == "site")
    assert one["own"] == {"backend": "bubblewrap"}
    (display,) = (one.display for one in on.read(approvals.find, conversation_id="shop"))
    assert display["backend"] == "bubblewrap"


def test_turns_of_a_workspace_are_those_of_its_agent(on: Stage) -> None:
    spec = on.root / "clerk.json"
    spec.write_text('{"name": "clerk"}')
    own(on, "desk", f'agent = "{spec}"\n')
    on.hire()
    items = {name: on.send("hello", f"in.{name}", workspace=bound(on.settings, name)) for name in ("desk", "default")}
    steps = {name: on.ended(item) and " ".join(on.steps(item)) for name, item in items.items()}
    assert {name: "clerk__model" in found for name, found in steps.items()} == {"desk": True, "default": False}


def test_a_wrong_setting_of_a_workspace_is_refused_with_its_name(on: Stage) -> None:
    for lines, cause in (
        (('bakend = "host"\n',), "bakend: no such key"),
        (("backend = [1]\n",), "backend: it is [1]: write one value"),
        (('hosts = "x"\n',), "hosts: it is 'x'"),
        ((LISTED, 'private = ["10"]\n'), "private: '10' is no range"),
        ((LISTED.replace("example.org", "@none"),), "'@none' names no set"),
        (('backend = "bwrap"\n',), "workspace site: BACKEND='bwrap' is not allowed"),
        (('backend = "auto"\n',), "workspace site: BACKEND=auto is not allowed here"),
        (("sandbox_processes = 1\n",), "workspace site: SANDBOX_PROCESSES='1' is not allowed"),
        (("foreground_timeout = true\n",), "workspace site: FOREGROUND_TIMEOUT"),
        (('hosts = ["example.org"]\n',), "workspace site: hosts has no effect with NETWORK=off"),
        (("sessions_per_conversation = 65\n",), "workspace site: SESSIONS_PER_CONVERSATION='65' is not allowed"),
        (("turn_max_tokens = 1\n",), "workspace site: TURN_MAX_TOKENS='1' is not allowed"),
        (('secret_paths = "key"\n',), "workspace site: SECRET_PATHS='key' is not allowed"),
        ((f'secret_paths = "{on.root}/site"\n',), f"{on.root}/site is hidden from sandboxes"),
        (
            (f'secret_paths = "{on.root}"\n', f'sandbox_readable = "{on.root}/data"\n'),
            "workspace site: SANDBOX_READABLE=",
        ),
    ):
        own(on, "site", *lines)
        assert_refused(shellback(on, "worker"), cause)
        on.home.joinpath("shellback.toml").write_text("")


def test_what_a_workspace_may_have_for_itself_are_settings_and_is_documented() -> None:
    assert set(OWN) <= set(Settings.model_fields)
    section = (ROOT / "docs/sandbox.md").read_text().partition("### Settings of its own")[2].partition("\n###")[0]
    keys = (row.split(" | ")[0] for row in section.splitlines() if row.startswith("| `"))
    assert {key for row in keys for key in re.findall(r"`(\w+)`", row)} == {*OWN, *LISTS}


def test_the_settings_of_a_workspace_are_those_of_the_process_but_for_its_own(on: Stage) -> None:
    site = own(on, "site", BOXED)
    added(on, "plain")
    views = Views(on.settings)
    seen = views.at(site)
    assert views.at(on.root / "plain") is views.at(on.workspace) is views.at(site / "below") is on.settings
    assert [found.workspace for _, found in views.own()] == ["site"]
    changed = {key for key in Settings.model_fields if getattr(seen, key) != getattr(on.settings, key)}
    assert changed == {"backend"}
    own(on, "site", 'backend = "nothing"\n')
    with pytest.raises(PolicyUnusable, match="workspace site: BACKEND='nothing'"):
        Views(on.settings)


async def test_the_directory_of_all_others_has_no_settings_of_its_own(on: Stage) -> None:
    path = own(on, "site", BOXED)
    with pytest.raises(PolicyUnusable, match="workspace site is WORKSPACE_ROOT"):
        Views(on.settings.model_copy(update={"workspace_root": path}))


async def test_what_is_copied_has_no_file_of_a_credential(on: Stage) -> None:
    source = on.root / "source"
    source.mkdir()
    (source / "token").write_text("x" * 20)
    own(on, "site", "per_conversation = true\n", 'from = "copy"\n', f'source = "{source}"\n')
    assert bound(on.settings, "site").each
    with (on.home / "shellback.toml").open("a") as file:
        file.write(f'[credentials.token]\nhosts = ["example.org"]\nfile = "{source}/token"\nheader = "X-Token"\n')
    with pytest.raises(WorkspaceUnusable, match=r"source has .*token, which no command may read"):
        bound(on.settings, "site")
