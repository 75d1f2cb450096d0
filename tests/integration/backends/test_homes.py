"""HOME of commands: private and empty; where it is the workspace, nothing in there is taken for configuration."""

from __future__ import annotations

import gc
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shellback.exec import HostShell
from shellback.exec.backends.host import HostBackend
from shellback.exec.backends.private_homes import PrivateHomes
from shellback.exec.backends.trusted import PROTECTED
from shellback.exec.core.environment import CHILD_PATH
from shellback.exec.core.model import CommandSpec
from shellback.exec.core.runner import EXEC_UID
from shellback.exec.supervisor.sandbox.stubs import SOCKET
from shellback.exec.wire import linux
from tests.desks import Desk, desk
from tests.execs import places, run
from tests.filetrees import git, give
from tests.supervisors import run_to_end

pytestmark = pytest.mark.anyio

RAN = "RAN-FROM-THE-WORKSPACE"

PLANTED = {
    ".curlrc": f'write-out = "{RAN} curl\\n"\n',
    ".gitconfig": f"[alias]\n\tplanted = !echo {RAN} git\n",
    ".config/git/config": f"[alias]\n\tplanted = !echo {RAN} git\n",
    ".npmrc": f"script-shell={RAN}\n",
    ".wgetrc": f"{RAN} = wget\n",
    ".gdbinit": f"echo {RAN} gdb\n",
    ".sqliterc": f".print {RAN} sqlite\n",
    ".vimrc": f"verbose !echo {RAN} vim\n",
    ".vim/plugin/x.vim": f"verbose !echo {RAN} vim\n",
    ".inputrc": f'"a": "{RAN} readline"\n',
    ".lesskey": f"#env\nLESSOPEN = |echo {RAN} less %s\n",
    **{
        f".local/lib/python3.{minor}/site-packages/x.pth": f"import sys; sys.stderr.write('{RAN} python\\n')\n"
        for minor in range(9, 16)
    },
}
PROGRAMS = {
    "python3": "python3 -c 'print(1)' 2>&1",
    "git": "git planted 2>&1",
    "curl": 'curl -s "file://$PWD/../plain"',
    "npm": "npm config get script-shell 2>&1",
    "wget": "wget --help 2>&1",
    "gdb": "gdb -batch -ex 'p 1' 2>&1 </dev/null",
    "sqlite3": "echo 'select 1;' | sqlite3 2>&1",
    "vim": "vim --not-a-term -c q 2>&1 </dev/null",
    "less": "less -FX ../plain 2>&1 </dev/null",
}


QUICK = ("python3", "git", "curl")


def plant(workspace: Path, programs: Collection[str] = QUICK) -> str:
    """A repository that somebody has cloned; the command that runs those programs that there are."""
    for name, text in {**PLANTED, "plain": "plain\n"}.items():
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(text)
    for path in (workspace, *workspace.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    give(workspace)
    (workspace / "below").mkdir()  # what is in the current directory, npm and gdb read by design
    here = [line for name, line in PROGRAMS.items() if name in programs and shutil.which(name, path=CHILD_PATH)]
    assert len(here) > 1
    return "; ".join(["cd below", *here, "touch ../made", "echo all of it"])


WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "foreground": ("execute", {}),
    "background": ("execute", {"background": True}),
    "terminal": ("execute_pty", {}),
    "words": ("shell_execute", {}),
    "login": ("run_shell", {}),
    "shell": ("shell_session", {"action": "exec", "timeout": 60}),
    "one_shell": ("shell", {"op": "execute", "timeout": 60}),
}


async def ran(here: Desk, way: str, line: str) -> str:
    """What a command line prints that is run in one of these ways."""
    tool, more = WAYS[way]
    if way == "shell":
        more = {**more, "session_id": (await here.approved(tool, action="start")).value["session_id"]}
    said = await here.approved(tool, command=["bash", "-c", line] if way == "words" else line, **more)
    if way in {"background", "terminal"}:
        session = await here.engine.wait(said.metadata["session_id"], up_to=60)
        return (await here.engine.output(session).ends()).text
    return str(said.value)


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("way", WAYS)
async def test_no_configuration_of_a_cloned_repository_is_read_by_a_plain_command(tmp_path: Path, way: str) -> None:
    async with desk(tmp_path, shell=True, workspace=True) as here:
        said = await ran(here, way, plant(here.workspace, PROGRAMS if way == "login" else QUICK))
        assert "all of it" in said
        assert RAN not in said


def test_a_shell_of_somebodys_code_reads_none_of_it_either(tmp_path: Path) -> None:
    workspace, _ = places(tmp_path)
    with HostShell(workspace) as mine:
        home = Path(dict(mine.env().variables)["HOME"])
        said = mine.execute(plant(workspace), timeout_seconds=60)
        assert "all of it" in said.stdout
        assert RAN not in said.stdout + said.stderr
        assert not home.is_relative_to(workspace)
        assert home.is_dir()
    assert not home.exists()


async def test_on_the_host_a_home_is_empty_private_and_of_one_conversation(tmp_path: Path) -> None:
    async with desk(tmp_path) as here:
        line = 'echo "$HOME"; ls -A ~; stat -c "%a %u" ~; id -u; touch ~/mine'
        first = (await run(here.engine, line)).output.text.splitlines()
        again = (await run(here.engine, 'echo "$HOME"; ls -A ~')).output.text.splitlines()
        home, mode, uid = Path(first[0]), first[1], first[2]
        assert mode == f"700 {uid}"
        assert again == [str(home), "mine"]
        assert not home.is_relative_to(here.workspace)
        other = await here.engine.backend.plan(CommandSpec(command=":", cwd=str(here.workspace)), "another talk")
        assert Path(other.env["HOME"]) != home
        assert os.listdir(other.env["HOME"]) == []


MISSING = [rule.name for rule in PROTECTED if rule.missing == SOCKET]
LOOKS = f"""
unset GIT_CONFIG_GLOBAL
git config --get no.such
git init -q sub || echo no repository
git -C sub status --short
{{ bash -lc : && bash -ic :; }} 2>&1 | grep -F "$HOME"
for name in {" ".join(MISSING)}; do
    [ -e ~/$name ] && echo $name is there
    cat ~/$name 2>&1 | grep -v 'No such file or directory'
done
echo over
"""


@pytest.mark.parametrize("way", ["login", "shell", "one_shell"])
@pytest.mark.usefixtures("each_backend")
async def test_where_home_is_the_workspace_what_is_not_there_looks_absent(tmp_path: Path, way: str) -> None:
    async with desk(tmp_path, shell=True) as here:
        (said,) = re.findall(r"'(?:stdout|output)': (['\"].*?['\"]), '", await ran(here, way, LOOKS))
        assert said == r"'over\n'"


@pytest.mark.parametrize("each_backend", ["bubblewrap"], indirect=True)
@pytest.mark.usefixtures("each_backend")
async def test_what_looks_absent_cannot_be_made_and_git_lists_nothing_in_its_place(tmp_path: Path) -> None:
    make = f"for name in {' '.join(MISSING)}; do echo x >~/$name && echo made; mv -f sub ~/$name && echo moved; done"
    async with desk(tmp_path) as here:
        git("init", "-q", cwd=here.workspace)
        give(here.workspace)
        started = (await here.approved("shell_session", action="start")).value["session_id"]
        said = await here.approved("shell_session", action="exec", session_id=started, command=f"touch sub; {make}")
        assert {"made", "moved"}.isdisjoint(said.value["output"].split())
        inside = await here.approved("shell_session", action="exec", session_id=started, command="git status --short")
        assert inside.value["output"] == "?? sub\n"
        there = set(os.listdir(here.workspace))
        assert there > set(MISSING)
        assert git("status", "--short", cwd=here.workspace) == "?? sub\n"
        reads = await here.approved("run_shell", command=f"cat {' '.join(MISSING)}; true")
        assert reads.value["stderr"].count("No such file or directory") == len(MISSING)


class TestPrivateHomes:
    def homes(self, tmp_path: Path, **more: int) -> PrivateHomes:
        tmp_path.chmod(0o700)
        return PrivateHomes(tmp_path, uid=more.get("uid", EXEC_UID if os.geteuid() == 0 else os.geteuid()))

    def test_a_place_that_somebody_else_could_make_first_is_never_taken(self, tmp_path: Path) -> None:
        planted = tmp_path / "planted"
        planted.mkdir()
        planted.chmod(0o777)
        (tmp_path / "homes").symlink_to(planted)
        home = self.homes(tmp_path).make("talk")
        assert not home.is_relative_to(planted)
        assert os.listdir(planted) == []
        assert self.homes(tmp_path).make("talk") == home

    def test_every_directory_on_the_way_to_a_home_is_ours(self, tmp_path: Path) -> None:
        home = self.homes(tmp_path).make("talk")
        for place in home.parents:
            found = place.stat()
            assert found.st_uid in {0, os.geteuid()}
            assert not found.st_mode & 0o022 or found.st_mode & stat.S_ISVTX

    def test_names_of_conversations_are_no_paths(self, tmp_path: Path) -> None:
        homes = self.homes(tmp_path)
        assert len({homes.path(name).parent.parent for name in ("..", "a/b", "/etc", "x" * 5000, "")}) == 1

    def test_a_home_goes_when_nothing_has_used_it_for_long_and_nothing_runs(self, tmp_path: Path) -> None:
        homes = self.homes(tmp_path)
        old, live, fresh = (homes.make(name) for name in ("old", "live", "fresh"))
        deep = old
        for _ in range(1200):  # deeper than one recursion goes
            deep /= "d"
            try:
                deep.mkdir()
            except OSError:
                break
        (old / "locked").mkdir(mode=0o500)
        for home in (old, live):
            os.utime(home.parent, (1, 1))
        assert homes.sweep({"live"}, before=1000.0) == 1
        assert [home.exists() for home in (old, live, fresh)] == [False, True, True]
        homes.close()
        assert not live.exists()
        assert not os.path.lexists(tmp_path / "homes")

    def test_what_a_command_put_in_place_of_its_files_leads_nobody_out(self, tmp_path: Path) -> None:
        homes = self.homes(tmp_path)
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "kept").touch()
        home = homes.make("talk")
        (home / "link").symlink_to(outside)
        os.utime(home.parent, (1, 1))
        assert homes.sweep((), before=1000.0) == 1
        assert (outside / "kept").exists()


def test_a_backend_without_a_state_directory_leaves_no_home_behind(tmp_path: Path) -> None:
    workspace, _ = places(tmp_path)
    code = (
        "import asyncio, sys; from shellback.exec.backends.host import HostBackend\n"
        "from shellback.exec.core.model import CommandSpec\n"
        f"at = {str(workspace)!r}; backend = HostBackend(at)\n"
        "plan = asyncio.run(backend.plan(CommandSpec(command=':', cwd=at), 'x'))\n"
        "import os; assert os.path.isdir(plan.env['HOME']); print(plan.env['HOME'])"
    )
    said = run_to_end(sys.executable, "-c", code, check=True)
    assert not os.path.exists(said.stdout.strip())
    assert HostBackend(workspace).private_home("x") != said.stdout.strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can let a thread handle files as somebody else")
def test_homes_go_whoever_collects_their_backend() -> None:
    backends = [PrivateHomes(None, uid=os.geteuid())]
    made = [backend.make("talk") for backend in backends]

    def collected() -> int:
        linux.file_identity(65534, 65534)
        backends.clear()
        gc.collect()
        with tempfile.TemporaryFile() as theirs:
            return os.fstat(theirs.fileno()).st_uid

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(collected).result() == 65534
    assert not any(home.exists() for home in made)
