"""A person's git meets nothing of a command's making that runs a program; each attack is shown to work without that."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.backends.bubblewrap import BubblewrapBackend
from shellback.exec.backends.containers import Containers
from shellback.exec.backends.inspection.inspector import Inspector, inspector_of
from shellback.exec.backends.podman import Podman, PodmanBackend
from shellback.exec.backends.protected import Covers, Protected
from shellback.exec.backends.supervisors import Supervisors
from shellback.exec.core.base import Backend
from shellback.exec.core.errors import WorkspaceUnusable
from shellback.exec.core.findings import GITLINK, HARD_LINK, REPOSITORY, UNSEEN, Finding, MemoryFindings
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.memory_store import MemorySessionStore
from shellback.exec.engine.waiting import Outcome
from shellback.exec.link.client import SupervisorClient
from shellback.exec.reports.callback_text import callback_payload, wake_text
from shellback.exec.reports.render import outcome_text
from tests import images, sandboxes
from tests.escape.grounds import Pods
from tests.escape.repositories import ATTACKS, BEGIN, Attack
from tests.execs import GATE, end_all, end_of, launch, let_go, places, run
from tests.supervisors import WHO, until

pytestmark = pytest.mark.anyio


class Ground:
    """A workspace that is a repository of the person's, and an engine whose commands work in it."""

    def __init__(self, tmp_path: Path, *, inspected: bool) -> None:
        self.workspace, self.home = places(tmp_path)
        self.outside = self.workspace.parent / "outside"
        self.outside.mkdir()
        self.outside.chmod(0o777)
        self.mark = self.outside / "mark"
        self.sink = MemoryFindings()
        self.inspected = inspected
        self.backend: Backend = BubblewrapBackend(self.workspace)
        self.git("init", "-q")
        (self.workspace / "README").write_text("hello\n")
        (self.workspace / "pwn").write_text(f"#!/bin/sh\n: > {self.mark}\ncat\n")
        (self.workspace / "pwn").chmod(0o755)
        self.git("add", "README", "pwn")
        self.git("commit", "-q", "-m", "one")

    def git(self, *words: str, at: str = ".") -> subprocess.CompletedProcess[bytes]:
        """What the person does, outside of every sandbox."""
        return self.outdoors("git", *words, at=at, check=True)

    def outdoors(self, *words: str, at: str = ".", check: bool = False) -> subprocess.CompletedProcess[bytes]:
        names = {f"GIT_{role}_{what}": "a@b" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        env = {"PATH": os.environ["PATH"], "HOME": str(self.outside), "GIT_CONFIG_NOSYSTEM": "1", **names}
        return subprocess.run(  # pyright: ignore[reportUnknownVariableType]
            words, cwd=self.workspace / at, env=env, check=check, capture_output=True, timeout=60, **WHO
        )

    @asynccontextmanager
    async def engine(self, store: MemorySessionStore | None = None, *, leaving: bool = False) -> AsyncGenerator[Engine]:
        inspector = inspector_of(self.backend, self.home / "quarantine", self.sink) if self.inspected else None
        assert isinstance(inspector, Inspector) is self.inspected
        port: Any = SupervisorClient(self.home, idle_s=0.5)
        if isinstance(self.backend, PodmanBackend):
            port = Supervisors(port, self.home, containers=self.backend.containers, host_needed=False)
        async with Engine(
            store or MemorySessionStore(), port, self.backend, home=self.home, inspector=inspector
        ) as engine:
            try:
                yield engine
            finally:
                if not leaving:
                    await end_all(engine)

    async def done(self, engine: Engine, command: str) -> Outcome:
        outcome = await run(engine, self.begin + command)
        assert end_of(outcome.session).exit_code == 0, outcome.output.text
        return outcome

    @property
    def protected(self) -> Protected:
        assert isinstance(self.backend, BubblewrapBackend)
        return self.backend.protected

    @property
    def begin(self) -> str:
        # Without root the workspace belongs to another user than the commands in a container.
        mine = "export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'"
        return f"export WORKSPACE={self.backend.inner}; {mine}\n{BEGIN}"


@pytest.fixture
def ground(tmp_path: Path, request: pytest.FixtureRequest) -> Generator[Ground]:
    sandboxes.needed()
    made = Ground(tmp_path, inspected=getattr(request, "param", True))
    yield made
    shutil.rmtree(made.workspace.parent, ignore_errors=True)


without_inspection = pytest.mark.parametrize("ground", [False], indirect=True, ids=[""])


@contextmanager
def contained(tmp_path: Path, *, inspected: bool) -> Generator[Ground]:
    """The same in containers, which are gone at the end."""
    images.needed()
    made = Ground(tmp_path, inspected=inspected)
    if os.geteuid():  # commands are another user of the same group
        for one in (made.workspace, *made.workspace.rglob("*")):
            one.chmod(one.stat().st_mode | 0o070 if one.is_dir() else one.stat().st_mode | 0o060)
    Pods.image(made.workspace.parent / "image")
    containers = Containers(made.home / "containers", Podman())
    made.backend = PodmanBackend(made.workspace, containers, image=str(made.workspace.parent / "image"))
    try:
        yield made
    finally:
        for one in containers.homes():
            containers.engine.remove(one.name)
        shutil.rmtree(made.workspace.parent, ignore_errors=True)


def attacks() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)


@attacks()
@without_inspection
async def test_each_attack_works_where_nothing_is_inspected(ground: Ground, attack: Attack) -> None:
    await ran(ground, attack.command)
    assert not ground.mark.exists()
    said = ground.outdoors(*attack.person, at=attack.at)
    assert ground.mark.exists(), said


@attacks()
async def test_what_git_would_obey_is_taken_away_before_the_person_uses_git_and_kept_and_told(
    ground: Ground, attack: Attack
) -> None:
    (outcome,) = await ran(ground, attack.command)
    ground.outdoors(*attack.person, at=attack.at)
    assert not ground.mark.exists()
    found = {one.path: one for one in ground.sink.all.values() if one.kind == REPOSITORY}
    one = found[str(ground.workspace / attack.taken)]
    assert one.session_id == outcome.session.id
    assert one.conversation_id == "talk"
    assert one.kept is not None
    assert Path(one.kept).is_relative_to(ground.home)
    assert one.sentence in outcome_text(outcome)
    assert (there(one.kept), there(one.path)) == (True, False)


async def ran(ground: Ground, *commands: str) -> list[Outcome]:
    """The outcomes of commands, one after the other."""
    async with ground.engine() as engine:
        return [await ground.done(engine, command) for command in commands]


def there(path: str | None) -> bool:
    return path is not None and os.path.lexists(path)


def found(ground: Ground, kind: str) -> list[Finding]:
    return [one for one in ground.sink.all.values() if one.kind == kind]


BENIGN = """
made one; file one; git clone -q one two; git clone -q --bare one three.git; git -C one worktree add -q ../four
made five; git -C five -c protocol.file.allow=always submodule --quiet add "$WORKSPACE/one" s; git -C five commit -qm s
git -C one config user.name somebody; git -C one remote add up https://example.org/x.git; git -C two branch -q topic
git -C two checkout -q topic; git -C one status -s; git add one/f 2>/dev/null || true
"""


async def test_repositories_that_run_nothing_stay_as_they_were_made(ground: Ground) -> None:
    (outcome,) = await ran(ground, BENIGN)
    assert ground.sink.all == {}
    assert outcome.findings == ()
    for name in ("one", "two", "four", "five", "five/s"):
        ground.git("status", at=name)


async def test_what_a_person_has_made_is_never_taken_away(ground: Ground) -> None:
    ground.git("init", "-q", "theirs")
    ground.git("config", "filter.x.clean", "cat", at="theirs")
    (ground.workspace / "theirs/.git/hooks/pre-commit").write_text("#!/bin/sh\n")
    async with ground.engine() as engine:
        await ground.done(engine, "true")
        # Nothing runs now: this is the person's too, between two commands.
        ground.git("init", "-q", "later")
        ground.git("config", "alias.x", "!true", at="later")
        await ground.done(engine, "true")
    assert ground.sink.all == {}
    assert (ground.workspace / "theirs/.git/hooks/pre-commit").exists()
    assert b"alias" in (ground.workspace / "later/.git/config").read_bytes()


async def test_a_nested_repository_that_is_added_to_the_protected_index_is_told(ground: Ground) -> None:
    one, two = await ran(
        ground,
        'made lib; git update-index --add --cacheinfo "160000,$(git -C lib rev-parse HEAD),lib"',
        "echo y > other; git add other",
    )
    (told,) = found(ground, GITLINK)
    assert told.path == str(ground.workspace / "lib")
    assert told.sentence in outcome_text(one)
    assert two.findings == ()


@pytest.mark.parametrize("format_", ["--index-version 4", "--index-version 3", "--split-index"])
async def test_an_index_of_each_kind_is_read(ground: Ground, format_: str) -> None:
    await ran(
        ground,
        f'''git update-index {format_}; for i in 1 2 3; do echo > "a file $i"; done; git add "a file "*
        made lib; git update-index --add --cacheinfo "160000,$(git -C lib rev-parse HEAD),lib/with a name"''',
    )
    assert [one.path for one in found(ground, GITLINK)] == [str(ground.workspace / "lib/with a name")]


async def test_another_name_of_a_protected_file_no_longer_writes_it(ground: Ground) -> None:
    one, two = await ran(
        ground, "made lib; file lib; ln lib/.git/config other", 'git config -f other core.fsmonitor "$PWN"'
    )
    (told,) = found(ground, HARD_LINK)
    assert told.path == str(ground.workspace / "lib/.git/config")
    assert "other" in told.detail
    assert told.sentence in outcome_text(one)
    assert two.findings == ()
    ground.git("status", at="lib")
    assert not ground.mark.exists()


async def test_what_a_command_in_the_background_has_made_is_found_by_the_next_command_and_again_at_its_end(
    ground: Ground,
) -> None:
    async with ground.engine() as engine:
        text = f'''{ground.begin}made lib; file lib; git -C lib config core.fsmonitor "$PWN"; echo ready
        {GATE}; git -C lib config core.fsmonitor "$PWN"; made last; git -C last config alias.x "!x"'''
        session = await launch(engine, text, shows="ready")
        told = outcome_text(await ground.done(engine, "true"))
        ground.git("status", at="lib")
        let_go(engine)
        ended = await engine.wait(session.id, up_to=60)
        notice = wake_text(callback_payload(ended, engine.output(ended)))
    ground.git("status", at="lib")
    assert not ground.mark.exists()
    assert [one.session_id for one in found(ground, REPOSITORY)] == [session.id] * 3
    assert "lib/.git/config, made by a command" in told
    findings = end_of(ended).findings
    assert len(findings) == 2
    assert all(one in notice for one in findings)
    assert any("last/.git/config" in one for one in findings)


async def test_what_a_process_makes_that_outlives_its_command_is_found_by_the_next_one(ground: Ground) -> None:
    async with ground.engine() as engine:
        later = f'{GATE}; git init -q lib; git -C lib config core.fsmonitor "$PWN"; : > made'
        outcome = await ground.done(engine, f"export PWN; (setsid bash -c '{later}' > /dev/null 2>&1 &); echo begun")
        assert end_of(outcome.session).survivors
        let_go(engine)
        await until((ground.workspace / "made").exists)
        await ground.done(engine, "true")
    (told,) = found(ground, REPOSITORY)
    assert told.path == str(ground.workspace / "lib/.git/config")
    # Nothing lives any more that a command has left: what is there now is the person's.
    ground.git("init", "-q", "mine")
    ground.git("config", "alias.x", "!true", at="mine")
    await ran(ground, "true")
    assert len(found(ground, REPOSITORY)) == 1


async def test_a_look_that_fails_is_told_and_what_was_made_is_examined_by_the_next_one(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, made = ground.protected._look, ground.workspace / "lib/.git/config"  # pyright: ignore[reportPrivateUsage]

    def fails() -> Covers:
        if made.exists():
            raise WorkspaceUnusable("too much")
        return looks()

    async with ground.engine() as engine:
        with monkeypatch.context() as patch:
            patch.setattr(ground.protected, "_look", fails)
            one = await ground.done(engine, 'made lib; git -C lib config core.fsmonitor "$PWN"')
        two = await ground.done(engine, "true")
    (unseen,) = found(ground, UNSEEN)
    assert unseen.sentence in outcome_text(one)
    assert "lib/.git/config" in outcome_text(two)


async def test_a_worker_that_comes_back_knows_what_was_made_while_it_was_away(ground: Ground) -> None:
    ground.git("init", "-q", "theirs")
    ground.git("config", "alias.x", "!true", at="theirs")
    store = MemorySessionStore()
    async with ground.engine(store, leaving=True) as engine:
        await ground.done(engine, "true")
        text = f"{ground.begin}echo ready; {GATE}; made lib; git -C lib config alias.x !x; : > made; sleep 600"
        session = await launch(engine, text, shows="ready")
    let_go(engine)
    await until((ground.workspace / "made").exists)
    async with ground.engine(store) as engine:
        await ground.done(engine, "true")
    (told,) = found(ground, REPOSITORY)
    assert (told.session_id, told.path) == (session.id, str(ground.workspace / "lib/.git/config"))


ODD = """
made lib; rm lib/.git/config; mkfifo lib/.git/config
made two; rm two/.git/config; ln -s ../../pwn two/.git/config
made three; rm -r three/.git/hooks; ln -s ../../lib three/.git/hooks
made four; head -c 100000 /dev/zero | tr '\\0' '#' >> four/.git/config
mkdir five; mkfifo five/.git; mkdir six; printf 'gitdir: nowhere' > six/.git
mkdir seven; ln -s seven/.git seven/.git
made eight; for i in $(seq 100); do touch "eight/.git/hooks/h$i"; done
"""


async def test_what_cannot_be_read_as_git_does_is_taken_away_unread(ground: Ground) -> None:
    await ran(ground, ODD)
    paths = {str(Path(one.path).relative_to(ground.workspace)) for one in found(ground, REPOSITORY)}
    assert paths == {
        "lib/.git/config", "two/.git/config", "three/.git/hooks", "four/.git/config", "five/.git", "six/.git",
        "seven/.git", "eight/.git/hooks",
    }  # fmt: skip
    assert all(there(one.kept) for one in found(ground, REPOSITORY))


@without_inspection
async def test_git_itself_takes_no_command_from_a_file_of_submodules(ground: Ground) -> None:
    await ran(
        ground,
        """made sub; file sub; made lib; git -C lib -c protocol.file.allow=always submodule add "$WORKSPACE/sub" s
        git -C lib config -f .gitmodules submodule.s.update "!$PWN"; git -C lib add .gitmodules; git -C lib commit -qm s
        git -C lib config --remove-section submodule.s""",
    )
    said = ground.outdoors("git", "-c", "protocol.file.allow=always", "submodule", "update", "--init", at="lib")
    assert not ground.mark.exists(), said


@pytest.mark.parametrize("inspected", [False, True], ids=["not inspected", "inspected"])
async def test_in_containers_too_the_person_s_git_runs_nothing_of_theirs(tmp_path: Path, inspected: bool) -> None:
    attack = ATTACKS[0]
    program = 'git -C vendor/lib config core.fsmonitor "$PWN"'  # by the path that the person's git takes it from
    with contained(tmp_path, inspected=inspected) as ground:
        text = attack.command.replace(program, program.replace("$PWN", str(ground.workspace / "pwn")))
        assert text != attack.command
        (outcome,) = await ran(ground, text)
        ground.outdoors(*attack.person)
        assert ground.mark.exists() is not inspected
        assert bool(outcome.findings) is inspected
