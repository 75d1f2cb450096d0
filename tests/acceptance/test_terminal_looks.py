"""How the answers of commands and a chat look at a narrow, a usual and a wide terminal: no row is left to it to wrap.

With SHELLBACK_PICTURES=DIRECTORY what a person sees is kept there as text, and with its colours as sequences in a
second file. The texts are kept in docs/pictures.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shellback.exec.policy.rules.rule import Match, Rule
from shellback.storage import rules
from shellback.work.queue import stream
from tests.commands import PROGRAM, shellback
from tests.panes import Pane, pane
from tests.sandboxes import writable
from tests.stage import Stage, working

ANSWER = """The build is **done**, but for `link`:

| step | state |
|-|-|
| compile | done |
| link | waits for the library that `make deps` fetches |

1. run `make deps`, which takes about a minute on this machine and needs the network
2. then:

```python
def built(target: str) -> bool:
    return target in {"compile", "link"}  # a comment
```

> Nothing else is missing. See <https://example.com/build>.
"""
QUESTION = r"^\[y\] once(?s:.*)\[\?\]$"
EMPTY = r"\A>\n\s+talk"
COMMANDS = (
    "", "approvals list --all", "approvals show ID", "ps --all", "hosts", "workers", "queue", "workspaces list",
    "conversations list", "conversations show shop -n 4", "rules list", "audit", "events -c shop -k answer", "network",
    "policy explain 'npm test && rm -rf build'", "sandbox", "config --changed", "doctor --live", "approvals show none",
    "approvals --help",
)  # fmt: skip


@pytest.fixture(scope="module")
def place() -> Generator[Stage]:
    with working() as made:
        for name in ("web", "documentation-of-the-product"):
            writable(made.root / name)
            assert shellback(made, "workspaces", "add", name, str(made.root / name)).returncode == 0
        made.started("$ for step in configure compile link; do echo $step; done; sleep 1000 &", "configure", "shop")
        made.started("$ sleep 1001 &", "1001", "nightly-build-of-the-documentation")
        made.started("$ make test; exit 3", "make test", "shop", rest=True)
        made.answer(made.send(ANSWER, "shop"))
        made.send("$ rm -rf archive && mkdir archive", "shop")
        made.send("$ " + " && ".join(f"cp 'report of {month}.txt' archive/" for month in range(9)), "long")
        made.pending("shop")
        made.pending("long")
        match = Match(prefix=("npm", "test"), exact=True, conversation_id="shop")
        made.write(rules.add, [Rule(effect="allow", match=match, owner="grace", note="before each commit")])
        yield made


@pytest.mark.parametrize("cols", [60, 100, 160])
def test_the_answers_of_commands_are_rows_that_fit(place: Stage, cols: int) -> None:
    asked = place.pending("shop").id
    with pane(place, rows=150, cols=cols + 40) as seat, kept("terminal", cols) as keep:
        seat.does(f'shellback() {{ {" ".join(PROGRAM)} "$@"; }}; PS1=; stty cols {cols}; clear; echo over', "^over$")
        for number, command in enumerate(COMMANDS):
            line = f"shellback {command}"
            seat.does(f"clear; {line.replace(' ID', f' {asked}')}; echo over {number}", f"^over {number}$")
            keep(seat, f"$ {line}")


def emptied(seat: Pane) -> None:
    """Press Ctrl-L until only the prompt is there: what the chat was about to write comes after a press."""
    while not re.search(EMPTY, seat.shown()):
        seat.keys("C-l")


@pytest.mark.parametrize("cols", [60, 100, 160])
def test_a_chat_is_rows_that_fit(place: Stage, cols: int) -> None:
    name = f"talk{cols}"
    with pane(place, rows=70, cols=cols + 40) as seat, kept("chat", cols) as keep:
        seat.does(f"stty cols {cols}; clear; {' '.join(PROGRAM)} chat -c {name} -w web", rf"^>\n  {name} · web · ")
        place.write(stream.note, name, "t", 0, "text", {"text": ANSWER})
        place.write(stream.note, name, "t", 0, "answer", {"text": ANSWER})
        seat.until(r"example\.com")
        keep(seat, "an answer")
        emptied(seat)
        seat.does("$ sed -i s/draft/final/ report.txt && for n in 1 2 3 4; do echo part $n; sleep 0.1; done", QUESTION)
        seat.does("d", r"digest: [0-9a-f]{30}(?s:.*)\[\?\]$")
        seat.does("?", r"shows this(?s:.*)\[\?\]$")
        seat.does("r", r"saves nothing$")
        keep(seat, "a request, its details, help, and the rules that would allow it")
        emptied(seat)
        seat.does("n", QUESTION)
        shown = seat.does("n not in this directory, please, but in the archive that is below it", "Denied by(?s:.*)^>$")
        assert "→" not in shown
        keep(seat, "a denial")
        emptied(seat)
        seat.does("$ for n in 1 2 3; do echo part $n; sleep 1; done; sleep 6", QUESTION)
        seat.does("y", "· part 3$")
        keep(seat, "a command that runs")
        seat.until("exit code 0")
        emptied(seat)
        seat.keys("/", shows=r"^> /\n +/approve")
        keep(seat, "what can be completed")
        seat.keys("C-c")
        seat.does("/help", r"processes\s+keep\s+running")
        seat.does("/pss", "no command")
        keep(seat, "help")


@contextmanager
def kept(name: str, cols: int) -> Generator[Callable[[Pane, str], None]]:
    """Looks at what a pane shows, which is wider than its programs believe, and keeps it if it is told to."""
    looks = list[tuple[str, str]]()

    def look(seat: Pane, title: str) -> None:
        shown = seat.shown().rstrip()
        assert all(len(row) <= cols for row in shown.split("\n"))
        shown = re.sub(r"\nover \d+$", "", shown)
        looks.append((f"{title}\n\n{shown}\n", f"{title}\n\n{seat.coloured().rstrip()}\n"))

    yield look
    if place := os.environ.get("SHELLBACK_PICTURES"):
        for kind, texts in zip(("txt", "ansi"), zip(*looks, strict=True), strict=True):
            Path(place, f"{name}-{cols}.{kind}").write_text("\n\n".join(texts))
