"""The containers of a state directory: made at first use, shared by calls with the same description, stopped when idle.

Containers and their descriptions are durable: the next process continues to use them.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any, Final

from shellback.exec.backends import container as made_of
from shellback.exec.backends import homes
from shellback.exec.backends.container import WORKSPACE, Container
from shellback.exec.backends.container_engine import ContainerEngine
from shellback.exec.core.errors import BackendUnavailable, SupervisorUnreachable
from shellback.exec.core.model import WORK, PodmanWorkspace
from shellback.exec.core.ports import WorkspaceStore
from shellback.exec.link import launch
from shellback.exec.link.client import SupervisorClient
from shellback.exec.supervisor.sandbox import stubs
from shellback.exec.wire import leash, linux

STOP_S: Final = 10.0
"""Grace period of a supervisor to end its commands, before the engine kills the container."""
_UP_S: Final = 120.0
"""Time for the supervisor of a running container to answer; a busy machine starts it slowly."""
_LOOK_S: Final = 0.5
_TRIES: Final = 3
_MADE: Final = "made"
_FOR: Final = "for"
_OVER: Final = frozenset({"exited", "stopped", "dead"})


class Containers:
    """One container for each description that is wanted; `root` has a directory for each, by its name.

    `log` is told what becomes of them. `stands` knows what stands in workspaces for them, for all who have some of the
    same workspace. `crash_dir` is handed to their supervisors, for tests.
    """

    def __init__(
        self,
        root: Path,
        engine: ContainerEngine,
        *,
        idle_s: float = made_of.IDLE_S,
        log: WorkspaceStore | None = None,
        stands: StandIns | None = None,
        crash_dir: Path | None = None,
    ) -> None:
        self.root = root
        self.stands = stands or StandIns(root / "stand-ins")
        self.engine = engine
        self._say = engine.log
        self.idle_s = idle_s
        self.log = log
        self._crash_dir = crash_dir
        self._making: dict[str, asyncio.Task[None]] = {}

    def home(self, want: Container) -> Path:
        """The home of this container, whether it exists or not."""
        return self.root / want.name(self.root)

    def homes(self) -> list[Path]:
        """The homes of this engine's containers that were made and not forgotten. Blocks for some microseconds each."""
        try:
            found = sorted(path.parent for path in self.root.glob(f"*/{homes.DESCRIPTION}"))
        except OSError:
            return []
        return [home for home in found if (known := homes.known(home)) is None or known.engine == self.engine.name]

    def _alike(self, scope: str, profile: str) -> list[Path]:
        """The homes of containers of this scope and profile."""
        known = [(home, homes.known(home)) for home in self.homes()]
        return [home for home, one in known if one is not None and (one.scope, one.profile) == (scope, profile)]

    def masks(self) -> tuple[Path, Path]:
        """An empty file and an empty directory, to mount over hidden paths."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        file, folder = self.root / "empty", self.root / "empty.d"
        file.touch(mode=0o444)
        folder.mkdir(mode=0o555, exist_ok=True)
        return file, folder

    async def ensure(self, want: Container) -> Path:
        """Its home, once the supervisor there listens; the container is made or started where that is needed.

        Cancelling leaves it coming up, for whoever wants it next.

        Raises:
            BackendUnavailable: It cannot be had, with cause and remedy; nothing of it is left running.
        """
        home = self.home(want)
        for _ in range(_TRIES):
            if home.name not in self._making and (pid := homes.peer(home)) and await self._holds(home, pid, want):
                await self._used(home)
                return home
            await self._up(home, want)
        await asyncio.to_thread(check_mounts, homes.peer(home), want)
        raise BackendUnavailable(
            f"the container {home.name} ends right after its start: see `{self.engine.name} logs {home.name}`"
        )

    async def revive(self, home: Path) -> None:
        """Have the container of a home run again, made anew if it is gone; returns when its supervisor listens.

        Raises:
            BackendUnavailable: It cannot be had, or nobody knows what it was made of.
        """
        want = await asyncio.to_thread(homes.known, home)
        if want is None:
            raise BackendUnavailable(
                f"the record of how the container of {home} was made is missing; its commands end as lost"
            )
        if want.engine != self.engine.name:
            raise BackendUnavailable(f"the container of {home} is one of {want.engine}: BACKEND={want.engine} has it")
        await self._up(home, want)

    async def touch(self, scope: str, profile: str = WORK) -> None:
        """Say that the containers of this scope and profile are in use, by something other than a command."""
        for home in await asyncio.to_thread(self._alike, scope, profile):
            await self._used(home)

    async def sweep(self, busy: Callable[[Path], bool] = lambda _home: False) -> list[Path]:
        """Stop what nobody has used for `idle_s` seconds and where nothing runs; the homes of what was stopped.

        `busy` may keep one: it is asked about each, and has to know of what is about to start only.
        """
        stopped: list[Path] = []
        for home in await asyncio.to_thread(self.homes):
            if time.time() - self._last_used(home) < self.idle_s or busy(home) or not await self._at_rest(home):
                continue
            try:
                what = await asyncio.to_thread(self._put_away, home)
            except BackendUnavailable as error:
                self._say.warning("an idle container could not be stopped: %s", error)
                continue
            if what == "stopped":
                stopped.append(home)
                if self.log is not None:
                    await self.log.stopped(home.name, self._last_used(home))
            elif what == "removed" and self.log is not None:
                await self.log.removed(home.name, time.time())
        await asyncio.to_thread(self.stands.tidy, self.engine.state)
        return stopped

    async def remove(self, name: str, *, grace_s: float = STOP_S) -> bool:
        """End the commands of a container, and take it away; False where there was none of this name.

        Its home stays as long as there is something of a session in it.

        Raises:
            BackendUnavailable: The engine does not do it.
        """
        there = await asyncio.to_thread(self.remove_now, self.root / name, grace_s)
        await asyncio.to_thread(self.stands.tidy, self.engine.state)
        if self.log is not None:
            await self.log.removed(name, time.time())
        return there

    async def close(self) -> None:
        """Wait for containers that are coming up; all containers keep running."""
        await asyncio.gather(*self._making.values(), return_exceptions=True)

    # -- making ----------------------------------------------------------------------------------

    async def _up(self, home: Path, want: Container) -> None:
        task = self._making.get(home.name)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._bring_up(home, want))
            self._making[home.name] = task
            task.add_done_callback(lambda _: self._making.pop(home.name, None))
        await asyncio.shield(task)

    async def _bring_up(self, home: Path, want: Container) -> None:
        identity, how = await asyncio.to_thread(self._make, home, want)
        await self._answers(home, ours=how != "found")
        if how == "found":
            await self._used(home)
            return
        await self._checked(home, want)
        self._say.info("container %s of %s (%s) %s", home.name, want.scope or "nobody", want.profile, how)
        if self.log is not None and how == "made":
            await self.log.made(_row(home, want, identity))
        elif self.log is not None:
            await self.log.started(home.name, time.time())
        if how == "made":
            await self._replace(home, want)

    def _make(self, home: Path, want: Container) -> tuple[str, str]:
        with self._locked(home):
            if homes.listens(home):
                return "", "found"
            os.close(launch.folder(home))
            homes.describe(home, want)
            leash.lend(self.root.parent, home)
            state = self.engine.state(home.name)
            if state is not None and state[0] == "running":
                return state[1], "found"  # its supervisor is just being replaced
            if state is not None and state[0] == "paused":
                raise BackendUnavailable(
                    f"the container {home.name} is paused: `{self.engine.name} unpause {home.name}`"
                )
            self.stands.make(home, want)
            if state is not None:
                try:
                    self.engine.start(home.name)
                except BackendUnavailable as error:
                    self._say.info("container %s does not start again, so it is made anew: %s", home.name, error)
                    self.engine.remove(home.name)
                else:
                    return state[1], "started"
            self.engine.forgotten(home)
            try:
                return self.engine.run(home.name, self.engine.words(want, home, crash_dir=self._crash_dir)), "made"
            except BackendUnavailable as error:
                raise BackendUnavailable(f"no container of {want.image}: {error}") from None

    async def _answers(self, home: Path, *, ours: bool) -> None:
        """Wait until the supervisor says hello; where one of our making does not, nothing is left of the container."""
        client = _Starting(home, spawn=False, wait_s=_UP_S)
        hello = asyncio.ensure_future(client.connect())
        try:
            while not hello.done():
                # It tells nobody that it has ended, and is seldom asked: most come up within tenths of a second.
                await asyncio.wait([hello], timeout=_LOOK_S)
                if not hello.done() and not await self._runs(home):
                    hello.cancel()
                    raise SupervisorUnreachable("it ended")  # noqa: TRY301 - as one that does not answer
            await hello
        except SupervisorUnreachable as error:
            if not ours:
                raise BackendUnavailable(
                    f"the container {home.name} runs, and its supervisor does not answer ({error}); see"
                    f" `{self.engine.name} top {home.name}`; `shellback containers rm {home.name}` ends what runs in it"
                ) from None
            lines = await asyncio.to_thread(self.engine.console, home)
            said = " ".join(line for line in lines[-3:] if line != "ready").strip()[-500:]
            await asyncio.to_thread(self.engine.remove, home.name)
            raise BackendUnavailable(
                f"the container {home.name} does not come up: {said or error}{self._why(said)}"
            ) from None
        finally:
            hello.cancel()
            await client.close()

    def _why(self, said: str) -> str:
        image = f"{self.engine.name.upper()}_IMAGE"
        return f"; take an image with Python 3.11 or newer ({image})" if "too old" in said else ""

    async def _runs(self, home: Path) -> bool:
        state = await asyncio.to_thread(self.engine.state, home.name)
        return state is not None and state[0] == "running"

    async def _holds(self, home: Path, pid: int, want: Container) -> bool:
        """Whether a container that runs still has all its mounts; one that does not and is at rest is removed.

        Raises:
            BackendUnavailable: It does not, and something runs in it.
        """
        try:
            await asyncio.to_thread(check_mounts, pid, want)
        except Unseen:
            return False  # not that it lacks anything: its supervisor is being replaced
        except BackendUnavailable as error:
            if not await self._at_rest(home):
                raise BackendUnavailable(f"{error}; or `shellback containers rm {home.name}` ends what runs") from None
            await asyncio.to_thread(self.engine.remove, home.name)
            return False
        return True

    async def _checked(self, home: Path, want: Container) -> None:
        try:
            await asyncio.to_thread(check_mounts, homes.peer(home), want)
        except BackendUnavailable:
            await asyncio.to_thread(self.engine.remove, home.name)
            raise

    async def _replace(self, home: Path, want: Container) -> None:
        """Remove other containers of this scope and profile in which nothing runs."""
        for other in await asyncio.to_thread(self._alike, want.scope, want.profile):
            if other != home and await self._at_rest(other) and other.name not in self._making:
                with contextlib.suppress(BackendUnavailable):
                    await self.remove(other.name)

    # -- use and end -----------------------------------------------------------------------------

    async def _used(self, home: Path) -> None:
        now = time.time()
        with contextlib.suppress(OSError):
            os.utime(home / homes.DESCRIPTION, (now, now))
        if self.log is not None:
            await self.log.touched(home.name, now)

    def _last_used(self, home: Path) -> float:
        try:
            return os.stat(home / homes.DESCRIPTION).st_mtime
        except OSError:
            return time.time()

    async def _at_rest(self, home: Path) -> bool:
        """Whether nothing runs and no end is unacknowledged, or supervisor and keeper have gone."""
        client = SupervisorClient(home, spawn=False)
        try:
            info = await client.connect()
        except SupervisorUnreachable:
            return not homes.kept(home)
        finally:
            await client.close()
        return not info["live"] and not info["unacknowledged"]

    def _put_away(self, home: Path) -> str:
        with self._locked(home):
            idle_s = time.time() - self._last_used(home)
            if homes.listens(home):
                if idle_s < self.idle_s:
                    return ""
                self.engine.stop(home.name, grace_s=STOP_S)
                self._say.info("container %s stopped: not used for %.0f s", home.name, idle_s)
                return "stopped"
            # It has no files of its own, so nothing is lost with what has nothing of any session.
            if idle_s < 2 * self.idle_s or not homes.emptied(home):
                return ""
            self.engine.remove(home.name)
            shutil.rmtree(home, ignore_errors=True)
            self._say.info("container %s removed: nothing is left of what ran in it", home.name)
            return "removed"

    def remove_now(self, home: Path, grace_s: float) -> bool:
        """Remove a container, and its home if that has no session; returns whether the container existed. Blocks."""
        with self._locked(home):
            there = self.engine.state(home.name) is not None
            if there:
                self.engine.stop(home.name, grace_s=grace_s)
                self.engine.remove(home.name)
                self._say.info("container %s removed", home.name)
            if homes.emptied(home):
                shutil.rmtree(home, ignore_errors=True)
        return there

    @contextlib.contextmanager
    def _locked(self, home: Path) -> Generator[None]:
        """Exclude our other processes and threads: an engine fails if two act on one container."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with linux.opened(self.root / f"{home.name}.lock", os.O_RDWR | os.O_CREAT) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield


class _Starting(SupervisorClient):
    """Waits `wait_s` seconds for a supervisor that is coming up in a container."""

    async def _await_another(self, waited: float) -> None:
        if waited > self._wait_s:
            raise SupervisorUnreachable(
                f"it runs, and no supervisor answered in {self._home} within {self._wait_s:g} s"
            )
        # A socket that does not exist yet tells nobody when it does.
        await asyncio.sleep(0.01)


def _row(home: Path, want: Container, identity: str) -> PodmanWorkspace:
    now = time.time()
    return PodmanWorkspace(
        container_id=identity,
        name=home.name,
        image=want.image,
        workdir=made_of.WORKSPACE,
        overlay_path=want.workspace,
        env=want.env,
        created_at=now,
        last_used_at=now,
        scope=want.scope,
        profile=want.profile,
    )


class Unseen(BackendUnavailable):
    """Raised when the mounts of a process cannot be seen; one that is about to end has none."""


def check_mounts(pid: int, want: Container) -> None:
    """Compare the mounts that the process `pid` sees with those of `want`.

    Engines go by names, and names in a workspace are in the hands of its commands: one that becomes a symlink at the
    right moment would bring something of the host into a container, or leave open what was to be covered.

    Raises:
        Unseen: They cannot be seen.
        BackendUnavailable: One is missing, or is another than it was to be.
    """
    try:
        text = Path(f"/proc/{pid}/mountinfo").read_text("utf-8", "surrogateescape")
    except OSError as error:
        raise Unseen(f"what the container has mounted cannot be seen: {error.strerror}") from None
    if not text:
        raise Unseen("what the container has mounted cannot be seen: the process ends")
    wrong = list(_wrong(_table(text), want))
    if wrong:
        raise BackendUnavailable(
            f"{wrong[0]} became another file while a container was made for it; try again when the workspace is at rest"
        )


def _table(text: str) -> dict[str, tuple[str, str]]:
    """Device and path on it, of what was mounted last at each place."""
    rows = (line.split(" ") for line in text.splitlines())
    return {_plain(row[4]): (row[2], _plain(row[3])) for row in rows}


def _plain(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _wrong(table: dict[str, tuple[str, str]], want: Container) -> Iterable[str]:
    if WORKSPACE not in table:
        yield want.workspace
        return
    device, top = table[WORKSPACE]
    for mount in want.mounts:
        seen = table.get(mount.target)
        inside = mount.source.startswith(f"{want.workspace}/")
        below = mount.source[len(want.workspace) :]
        if seen is None or (inside and seen != (device, f"{top.rstrip('/')}{below}")):
            yield mount.source if inside else mount.target


class StandIns:
    """Stand-ins for missing protected paths of a workspace, so that no command in a container can make them.

    A mount on a stand-in needs it, so it exists as long as the container does; the next process that tidies removes it.
    The file `kept`, shared by all processes of a state directory, says which stand-in was made for which container. All
    methods block, for the disk and for each other.
    """

    def __init__(self, kept: Path) -> None:
        self._kept = kept

    def make(self, home: Path, want: Container) -> None:
        """Have there what its container, of this home, wants to stand in its workspace; known to be ours before.

        Raises:
            BackendUnavailable: Something cannot be made.
        """
        wanted = dict(want.stands)
        if not wanted:
            return
        place = os.stat(want.workspace)
        owner = (place.st_uid, place.st_gid) if os.geteuid() == 0 else None
        with self._known() as known:
            made: dict[str, str | None] = known[_MADE]
            # What somebody else has there is not ours to remove.
            missing = {path: text for path, text in wanted.items() if path not in made and not os.path.lexists(path)}
            made.update(missing)
            known[_FOR][str(home)] = sorted(wanted.keys() & made.keys())
            self._write(known)
            for path in known[_FOR][str(home)]:
                text = made[path]
                try:
                    with contextlib.suppress(FileExistsError):
                        stubs.make(path, None if text is None else text.encode(), owner)
                except OSError as error:
                    raise BackendUnavailable(
                        f"{path} has to stand in the workspace while commands run, and cannot be made: {error.strerror}"
                    ) from None

    def tidy(self, state: Callable[[str], tuple[str, str] | None]) -> None:
        """Remove what was made for containers that are gone, by what an engine says (`ContainerEngine.state`)."""
        if not self._kept.exists():
            return
        with self._known() as known:
            known[_FOR] = {home: paths for home, paths in known[_FOR].items() if _needed(Path(home), state)}
            still = {path for paths in known[_FOR].values() for path in paths}
            for path in known[_MADE].keys() - still:
                text = known[_MADE].pop(path)
                with contextlib.suppress(OSError):
                    stubs.remove(path, None if text is None else text.encode())
            self._write(known)

    @contextlib.contextmanager
    def _known(self) -> Generator[dict[str, dict[str, Any]]]:
        self._kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with linux.opened(f"{self._kept}.lock", os.O_RDWR | os.O_CREAT) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield self._read()

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            found = json.loads(self._kept.read_text("utf-8"))
            return {_MADE: dict(found[_MADE]), _FOR: dict(found[_FOR])}
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return {_MADE: {}, _FOR: {}}

    def _write(self, known: dict[str, dict[str, Any]]) -> None:
        aside = self._kept.with_suffix(".new")
        aside.write_text(json.dumps(known), "utf-8")
        aside.replace(self._kept)


def _needed(home: Path, state: Callable[[str], tuple[str, str] | None]) -> bool:
    """Whether the container of a home is there, or on its way."""
    if homes.kept(home):
        return True
    with contextlib.suppress(FileNotFoundError), open(f"{home}.lock", "rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True  # somebody is about to make it
    try:
        found = state(home.name)
    except BackendUnavailable:
        return True
    return found is not None and found[0] not in _OVER
