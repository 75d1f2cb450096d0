"""`shellback workspaces`: list, add and remove the directories in which conversations work."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
import tomllib
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from shellback.cli.shared import Columns, Refused, json_option, load_settings, opened, show, table_lines, utf8
from shellback.exec.core.display import visible_line

if TYPE_CHECKING:
    from shellback.settings import Settings

_TABLE: Final = re.compile(r"\s*\[\s*workspaces\s*\]")


@click.group()
def workspaces() -> None:
    """List, add and remove workspaces: the directories in which conversations work.

    A conversation works in one workspace from its start: that of --workspace, else WORKSPACE_ROOT, which is named
    default. The others are in `[workspaces]` of the operator's file (POLICY_FILE, or shellback.toml in the state
    directory). A worker takes notice of a change at the next turn.

    \b
      shellback workspaces add web ~/projects/web
      shellback workspaces list
      shellback send -c shop --workspace web 'Run the tests.'
    """  # noqa: D301 - \b is click's mark for text that keeps its lines


@workspaces.command("list")
@json_option
def list_() -> None:
    """List workspaces with path, state, and number of conversations. `usable`, or why commands cannot work there."""
    from shellback.exec.policy.rules.file import workspaces as written
    from shellback.work.queue import standing
    from shellback.work.queue.mailbox import DEFAULT

    with opened() as where:
        settings, counts = where.settings, where.database.read_now(standing.by_workspace)
    found: list[dict[str, Any]] = []
    known: dict[str, Path] = {}
    for name, path in {DEFAULT: settings.workspace_root, **written(settings.policy)}.items():
        real = Path(os.path.realpath(path))
        problem = _problem(settings, path, None if name == DEFAULT else known)
        if name != DEFAULT:
            known[name] = real
        found.append({"name": name, "path": str(path), "problem": problem, "conversations": counts.pop(name, 0)})
    gone = [{"name": name, "path": None, "problem": GONE, "conversations": count} for name, count in counts.items()]
    columns: Columns[dict[str, Any]] = {
        "WORKSPACE": lambda one: one["name"],
        "PATH": lambda one: one["path"],
        "CONVERSATIONS": lambda one: one["conversations"],
        "STATE": lambda one: "usable" if one["problem"] is None else "problem",
    }
    lines = table_lines([*found, *gone], columns)
    lines += [visible_line(f"{one['name']}: {one['problem']}") for one in [*found, *gone] if one["problem"]]
    show([*found, *gone], lines)


GONE: Final = "not configured any more: its conversations run no commands until it is added again"


@workspaces.command()
@click.argument("name")
@click.argument("path")
@click.option("--make", is_flag=True, help="Create the directory; if we are root, EXEC_UID owns it.")
@json_option
def add(name: str, path: str, make: bool) -> None:
    """Add the workspace NAME, the directory PATH. Commands of its conversations run there and write nothing else.

    PATH must not be in another workspace, nor contain one, nor the state directory. The rules of the operator's file
    apply in all workspaces, unless a rule has a cwd.

    \b
      shellback workspaces add web ~/projects/web
      shellback workspaces add scratch /srv/scratch --make
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.exec.core.runner import Runner, make_workspace
    from shellback.exec.policy.rules.file import NAME, WORKSPACES
    from shellback.exec.policy.rules.file import workspaces as written
    from shellback.orders import note_workspace
    from shellback.storage.host import ensure_home
    from shellback.wiring.spaces import objection
    from shellback.work.queue.mailbox import DEFAULT

    settings = load_settings()
    if name == DEFAULT or not NAME.fullmatch(name):
        raise Refused(
            f"{visible_line(name)!r} is no name for a workspace: use 1 to 40 letters, digits, - and _, beginning with"
            f" no sign; {DEFAULT} is WORKSPACE_ROOT"
        )
    given = Path(os.path.abspath(os.path.expanduser(utf8(path, "PATH"))))
    real = Path(os.path.realpath(given))
    if any(ord(char) < 32 for char in str(real)):
        raise Refused(f"{visible_line(str(real))} has a control character: rename it")
    ensure_home(settings.shellback_home)
    with _locked(settings):
        known = written(settings.policy)
        if name in known and Path(os.path.realpath(known[name])) == real:
            show({"name": name, "path": str(real), "added": False}, [visible_line(f"{name} is {real} already")])
            return
        if name in known:
            raise Refused(
                f"workspace {name} is {visible_line(str(known[name]))}, and its conversations stay there: remove it"
                " first, or take another name"
            )
        if len(known) >= WORKSPACES:
            raise Refused(f"there are {WORKSPACES} workspaces, which is the most: remove one first")
        others = {one: Path(os.path.realpath(place)) for one, place in known.items()}
        if (why := objection(settings, real, others)) is not None:
            raise Refused(visible_line(f"{given} cannot be a workspace: {why}"))
        if make:
            try:
                make_workspace(real, uid=settings.exec_uid)
            except OSError as error:
                raise Refused(
                    visible_line(f"{given} cannot be created: {error.strerror}; create it yourself")
                ) from None
        elif not real.is_dir():
            raise Refused(visible_line(f"{given} is no directory: create it, or give --make"))
        Runner(exec_uid=settings.exec_uid).check(real, given=given)
        # From now on no setting and no module in it is obeyed.
        note_workspace(settings.shellback_home, real)
        _write(settings, {**known, name: real}, _with(_read(settings), name, real))
    show({"name": name, "path": str(real), "added": True}, [visible_line(f"added {name}: {real}")])


@workspaces.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Remove it even if conversations work in it.")
@json_option
def remove(name: str, force: bool) -> None:
    """Remove the workspace NAME from the list. Its files stay.

    Conversations that work in it run no commands any more, until a workspace with the same name and path is added.
    Processes that run go on.
    """
    from shellback.exec.policy.rules.file import workspaces as written
    from shellback.work.queue import standing

    with opened() as where, _locked(where.settings):
        known = written(where.settings.policy)
        if name not in known:
            raise Refused(f"there is no workspace {visible_line(name)!r} to remove: `shellback workspaces list`")
        count = where.database.read_now(standing.by_workspace).get(name, 0)
        if count and not force:
            raise Refused(
                f"{count} conversation{'' if count == 1 else 's'} work in {name} and would run no commands any more:"
                " give --force"
            )
        left = {one: path for one, path in known.items() if one != name}
        _write(where.settings, left, _without(_read(where.settings), name))
    path = str(known[name])
    show({"name": name, "path": path, "removed": True}, [visible_line(f"removed {name}; its files stay in {path}")])


def _problem(settings: Settings, path: Path, others: dict[str, Path] | None) -> str | None:
    """Why commands cannot work in a directory; None if they can. `others` None: it is WORKSPACE_ROOT."""
    from shellback.exec.core.errors import ExecError
    from shellback.exec.core.runner import Runner
    from shellback.wiring.spaces import objection

    real = Path(os.path.realpath(path))
    if others is not None and (why := objection(settings, real, others)) is not None:
        return why
    if others is not None and not real.is_dir():
        return f"{path} is missing or no directory: create it, or remove the workspace"
    try:
        Runner(exec_uid=settings.exec_uid).check(real, given=path)
    except (ExecError, OSError) as error:
        return str(error)
    return None


def _file(settings: Settings) -> Path:
    return settings.policy or settings.shellback_home / "shellback.toml"


@contextlib.contextmanager
def _locked(settings: Settings) -> Generator[None]:
    """Exclude others who change the file."""
    fd = os.open(settings.shellback_home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _read(settings: Settings) -> str:
    try:
        return _file(settings).read_text("utf-8")
    except FileNotFoundError:
        return ""


def _with(text: str, name: str, path: Path) -> str:
    quoted = "".join(f"\\{char}" if char in '"\\' else char for char in str(path))
    line = f'{name} = "{quoted}"'
    lines = text.splitlines()
    for at, one in enumerate(lines):
        if _TABLE.match(one):
            return "\n".join([*lines[: at + 1], line, *lines[at + 1 :]]) + "\n"
    return "\n".join([*lines, *([""] if lines else []), "[workspaces]", line]) + "\n"


def _without(text: str, name: str) -> str:
    wanted, kept, inside = re.compile(rf"\s*([\"']?){re.escape(name)}\1\s*="), list[str](), False
    for line in text.splitlines():
        inside = bool(_TABLE.match(line)) or (inside and not line.lstrip().startswith("["))
        if not (inside and wanted.match(line)):
            kept.append(line)
    return "\n".join(kept) + "\n"


def _write(settings: Settings, wanted: dict[str, Path], text: str) -> None:
    """Replace the operator's file, if only its workspaces change.

    Raises:
        Refused: It is written in a way that is not understood here.
    """
    path, before = _file(settings), _read(settings)
    with contextlib.suppress(tomllib.TOMLDecodeError):
        then, now = tomllib.loads(before), tomllib.loads(text)
        names = now.pop("workspaces", {})
        then.pop("workspaces", None)
        if then == now and {one: Path(os.path.expanduser(place)) for one, place in names.items()} == wanted:
            real = path.resolve()
            fd, draft = tempfile.mkstemp(prefix=f".{real.name}.", dir=real.parent)
            try:
                with os.fdopen(fd, "w", encoding="utf-8") as file:
                    file.write(text)
                    file.flush()
                    if real.exists():
                        found = real.stat()
                        os.fchmod(fd, found.st_mode & 0o777)
                        if os.geteuid() == 0:
                            os.fchown(fd, found.st_uid, found.st_gid)
                    os.fsync(fd)
                os.replace(draft, real)
            except BaseException:
                os.unlink(draft)
                raise
            return
    raise Refused(
        f"{path} is written in a way that this command does not change: change its table [workspaces] yourself"
    )
