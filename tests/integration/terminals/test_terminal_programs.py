"""Programs that people use in a terminal, used through the tools: what is typed arrives, and the screen is seen."""

from __future__ import annotations

import pytest

from shellback.exec.engine.engine import Engine
from shellback.exec.engine.sessions import Sessions
from shellback.exec.terminals.keys import ALTERNATE_SCREEN, APPLICATION_CURSOR
from tests.execs import end_of, origin
from tests.filetrees import give
from tests.terminals import needed, typist

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("each_backend")]

MENU = """
import curses
def main(window):
    items, at = ["apples", "pears", "plums"], 0
    window.keypad(True)
    while True:
        window.erase()
        rows, cols = window.getmaxyx()
        window.addstr(0, 0, f"choose from {rows}x{cols}")
        for number, item in enumerate(items):
            window.addstr(number + 2, 2, ("> " if number == at else "  ") + item)
        window.addch(7, 2, curses.ACS_ULCORNER)
        window.hline(7, 3, curses.ACS_HLINE, 5)
        window.refresh()
        key = window.getch()
        if key in (curses.KEY_DOWN, curses.KEY_UP):
            at = (at + (1 if key == curses.KEY_DOWN else -1)) % 3
        elif key in (10, 13):
            return items[at]
print("chose", curses.wrapper(main))
"""


async def test_python_is_talked_to_and_edits_lines(engine: Engine) -> None:
    python = await typist(engine, "exec python3 -q")
    await python.until("^>>>$")
    await python.sees("^ééé 42$", "Enter", literal="print('é' * 3, 6 * 7)")
    await python.sees("^ééé 48$", "Up", "Left", "BSpace", "8", "Enter")
    await python.press("C-d")
    assert end_of(await python.ended()).exit_code == 0


async def test_node_is_talked_to_and_interrupted(engine: Engine) -> None:
    needed("node")
    node = await typist(engine, "exec node")
    await node.until("^>$")
    await node.sees("^'2-4-6'$", "Enter", literal="[1, 2, 3].map(x => x * 2).join('-')")
    await node.sees("^in vain$", "Enter", literal="console.log('in' + ' vain'); for (;;) {}")
    await node.sees("interrupted", "C-c")
    await node.press("Enter", literal=".exit")
    assert end_of(await node.ended()).exit_code == 0


async def test_less_scrolls_searches_and_gives_the_screen_back(engine: Engine) -> None:
    needed("less")
    (engine.workspace / "lines").write_text("".join(f"line {n}\n" for n in range(1, 301)))
    less = await typist(engine, "echo before; less lines")
    shown = await less.until("^lines$|^line 39$")
    assert shown.lines[0] == "line 1"
    assert ALTERNATE_SCREEN in shown.modes
    await less.press("Down")
    await less.until(lambda screen: screen.lines[0] == "line 2")
    await less.press("Enter", literal="/line 250")
    await less.until(lambda screen: screen.lines[0] == "line 250")
    answer = await less.call("process_screen")
    assert "line 250\nline 251\n" in answer.content
    assert "screen of 40 rows and 120 columns" in answer.content
    assert answer.metadata["modes"] == sorted(shown.modes)
    await less.press("q")
    ended = await less.ended()
    left = await less.screens.of(ended)
    assert left.lines[0] == "before"
    assert "line 250" not in left.text


async def test_vim_edits_a_file(engine: Engine) -> None:
    needed("vim")
    (engine.workspace / "poem").write_text("roses are blue\nthe end\n")
    give(engine.workspace / "poem")
    vim = await typist(engine, "exec vim -u NONE -N -n poem")
    shown = await vim.until("^roses are blue$")
    assert ALTERNATE_SCREEN in shown.modes
    assert shown.lines[2] == "~"
    await vim.press("End", "b", "c", "w")
    shown = await vim.sees("^roses are red$", "Escape", literal="red")
    assert shown.cursor[0] == 1
    await vim.press("Down", "o", "S-a", "F")
    await vim.sees("^AF$", "Escape")
    await vim.press("Enter", literal=":wq")
    await vim.ended()
    assert (engine.workspace / "poem").read_text() == "roses are red\nthe end\nAF\n"


async def test_git_asks_for_each_hunk(engine: Engine) -> None:
    # Below the workspace: the sandbox lets nobody make a repository of the workspace itself.
    made = (
        "mkdir -p one && cd one && git init -q . && git config user.email a@b && git config user.name a "
        "&& printf 'one\\ntwo\\n' > f && git add f && git commit -qm first "
        "&& printf 'ONE\\ntwo\\n' > f && git add -p f"
    )
    git = await typist(engine, f"{made} && git diff --cached --stat")
    await git.until(r"Stage this hunk \[.*\]\?$")
    await git.sees("y - stage this hunk", "?", "Enter")
    await git.press("y", "Enter")
    ended = await git.ended()
    assert "1 file changed" in (await engine.output(ended).ends()).text


async def test_ssh_keygen_takes_a_passphrase_from_a_person_only(engine: Engine) -> None:
    needed("ssh-keygen")
    keygen = await typist(engine, "exec ssh-keygen -q -t ed25519 -f key")
    await keygen.until("passphrase .*:$")
    refused = await keygen.press("Enter", literal="hunter2")
    assert refused.outcome == "failed"
    assert "attach" in str(refused.content)
    sessions = Sessions(engine, None)
    await sessions.write(keygen.session.id, b"hunter2\r", origin(), tool="process_write", by_model=False)
    await keygen.until("same passphrase again:$")
    await sessions.write(keygen.session.id, b"hunter2\r", origin(), tool="process_write", by_model=False)
    ended = await keygen.ended()
    assert end_of(ended).exit_code == 0
    assert "hunter2" not in (await engine.output(ended).ends()).text
    assert (engine.workspace / "key.pub").exists()


async def test_a_full_screen_menu_is_steered_with_arrows(engine: Engine) -> None:
    (engine.workspace / "menu.py").write_text(MENU)
    menu = await typist(engine, "exec python3 menu.py")
    shown = await menu.until("^  > apples$[\\s\\S]*^  ┌─────$")
    assert {APPLICATION_CURSOR, ALTERNATE_SCREEN} <= shown.modes
    await menu.sees("^  > plums$", "Down", "Down")
    await menu.sees("^  > pears$", "Up")
    await menu.call("process_resize", rows=10, cols=30)
    await menu.until("^choose from 10x30$")
    await menu.press("Enter")
    ended = await menu.ended()
    assert "chose pears" in (await engine.output(ended).ends()).text
