"""What a terminal shows of output, where its cursor is, and what of it reaches the terminal of a person."""

from __future__ import annotations

import itertools
import random
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wcwidth import wcwidth

from shellback.exec.supervisor.process.queries import Cursor
from shellback.exec.terminals.attaching import INPUT_OFF, Passing
from shellback.exec.terminals.emulator import Emulator
from shellback.exec.terminals.screen import drawn
from tests.databases import unavailable
from tests.supervisors import SOON


def shown(data: bytes, rows: int = 6, cols: int = 11, *, piece: int = 1 << 20) -> list[str]:
    emulator = Emulator(rows, cols)
    for position in range(0, len(data), piece):
        emulator.feed(data[position : position + piece])
    return emulator.lines_of_text()


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (b"plain\r\nnext", ["plain", "next"]),
        (b"over\rOV", ["OVer"]),
        (b"\x1b[2;3Hx", ["", "  x"]),
        ("zwölf ein Wort\r\n中文字中文字".encode(), ["zwölf ein W", "ort", "中文字中文", "字"]),
        ("e\u0301\u0301\u0301\u0301".encode(), ["é\u0301"]),
        ("heart \u2764\ufe0f and \u200dtext".encode(), ["heart \u2764 and", " text"]),
        (b"\x1b(0lqk\x1b(B lqk", ["┌─┐ lqk"]),
        (b"a\x1b[3b", ["aaaa"]),
        (b"one\r\ntwo\x1b[?1049h\x1b[Hfull", ["full"]),
        (b"one\r\ntwo\x1b[?1049h\x1b[Hfull\x1b[?1049l!", ["one", "two!"]),
        (b"one\x1b[?1049hfull\x1bcnew", ["new"]),
        (b"a\r\nb\r\nc\x1b[S", ["b", "c"]),
        (b"a\r\nb\x1b[T", ["", "a", "b"]),
        (b"a\r\nb\r\nc\x1b[1;1H\x1b[2M", ["c"]),
        (b"\x1b[3;1Hc\x1b[1;1Ha\x1b[M", ["", "c"]),
        (b"keep\x1bP+q436f\x1b\\ing", ["keeping"]),
        (b"a\x1b_apc\x1b\\b\x1b^pm\x1b\\c\x1bXsos\x1b\\d", ["abcd"]),
        (b"a\x1b[!pb\x1b[>4;2mc\x1b[4:3md\x1b[ qe\x1b[?1$pf", ["abcdef"]),
        (b"\x1b]0;title\x07a\x1b]2;other\x1b\\b\x1b]7770;x\x07c", ["abc"]),
        (b"a\x1b[9999999999;9999999999Hb", ["a", "", "", "", "", "          b"]),
        (b"no wrap \x1b[?7l0123456", ["no wrap 016"]),
        (b"abc\x1b[D\x1b[D\x1b[4hX\x1b[4l", ["aXbc"]),
        (b"\x1b7\x1b[2;4r\x1b8\x1b[5Bx", ["", "", "", "x"]),
        (b"lost \xff\xfe found", ["lost \ufffd\ufffd fou", "nd"]),
        (b"\x1b[4G\x1bH\r\ta\tb\r\n\x1b[10G\x1b[2Zc", ["   a    b", "   c"]),
        (b"\x1b[4G\x1bH\x1b[9G\x1b[g\r\ta\tb\r\n\x1b[3g\tc", ["   a      b", "          c"]),
        (b"\x1b[3g\x1bc\ta", ["        a"]),
        (b"\x1b[2;4r\x1b[?6ha\x1b[2;3Hb\x1b[9;9Hc\x1b[2dd", ["", "a", "  b      d", "        c"]),
        (b"\x1b[2;4r\x1b[?6h\x1b[2;3Hb\x1b[?6la\x1b[6;1Hc", ["a", "", "  b", "", "", "c"]),
        (b"\x1b[?6h\x1b[3da", ["", "", "a"]),
        (b"\x1b[2;4r\x1b[?6h\x1b7\x1b[?6l\x1b8\x1b[1;1Ha", ["", "a"]),
        (b"\x1b[2;4r\x1b7\x1b[?6h\x1b8\x1b[1;1Ha", ["a"]),
        (b"\x1b[2;4r\x1b[?6h\x1b[4h\x1b(0\x1b[3;3H\x1b[!pxy\x1b[1;1Hab\x1b[1;1Hc", ["cb", "", "", "  xy"]),
        (b"one\x1b[?1049h\x1b[!pfull", ["   full"]),
        (b"ab\x1b[?1048h\x1b[5;5Hc\x1b[?1048ld", ["abd", "", "", "", "    c"]),
        (b"ab\x1b[2\n;\r5\x7fHc", ["ab", "    c"]),
        (b"ab\x1b[2\x18Cc\x1b[3\x1b[Dd", ["abCd"]),
    ],
)
def test_output_is_shown_as_on_a_terminal(data: bytes, rows: list[str]) -> None:
    assert shown(data) == rows + [""] * (6 - len(rows))
    assert shown(data, piece=1) == shown(data)


def test_a_sequence_that_never_ends_swallows_nothing() -> None:
    assert "after" in "".join(shown(b"\x1b]0;" + b"x" * 10_000 + b"after"))
    assert "after" in "".join(shown(b"\x1bP" + b"x" * 10_000 + b"\r\nafter", piece=100))


def test_another_size_keeps_what_fits() -> None:
    emulator = Emulator(6, 11)
    emulator.feed(b"first\r\nsecond\r\n0123456789\r\nlast")
    emulator.fit(2, 8)
    assert emulator.lines_of_text() == ["01234567", "last"]
    emulator.fit(4, 20)
    emulator.feed(b" row\r\nand a longer one")
    assert emulator.lines_of_text() == ["01234567", "last row", "and a longer one", ""]


def sequence(start: str, numbers: list[int], final: str) -> bytes:
    return f"\x1b[{start}{';'.join(map(str, numbers))}{final}".encode()


PIECES = st.one_of(
    st.binary(max_size=12),
    st.text(max_size=8).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.builds(
        sequence,
        st.sampled_from(["", "?", ">", "<", "=", " ", "!", "$"]),
        st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 9, 25, 47, 132, 1048, 1049, 9999]), max_size=4),
        st.sampled_from("@ABCDEFGHIJKLMPSTXZ`abcdefghilmnpqrstux$"),
    ),
    st.sampled_from(
        [
            b"\x1b7",
            b"\x1b8",
            b"\x1bM",
            b"\x1bD",
            b"\x1bH",
            b"\x1bc",
            b"\x1b#8",
            b"\x1b%G",
            b"\x0e",
            b"\x0f",
            b"\n",
            b"\t",
        ]
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES, max_size=40), st.integers(2, 9), st.integers(2, 12), st.integers(2, 9), st.integers(2, 12))
def test_no_output_breaks_it_or_makes_it_larger(
    pieces: list[bytes], rows: int, cols: int, later: int, wider: int
) -> None:
    emulator = Emulator(rows, cols)
    for piece in pieces[:20]:
        emulator.feed(piece)
    emulator.fit(later, wider)
    for piece in pieces[20:]:
        emulator.feed(piece)
    lines = emulator.lines_of_text()
    assert len(lines) == later
    assert all(sum(map(wcwidth, line)) <= wider and len(line) <= 3 * wider for line in lines)
    assert 0 <= emulator.cursor.y < later
    assert 0 <= emulator.cursor.x <= wider
    assert len(emulator.buffer) <= later + 1
    assert len(emulator.savepoints) <= 1


@pytest.mark.parametrize("slow", [b"\n", b"\x1b[@"])
def test_output_made_to_be_slow_is_cut_short(slow: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shellback.exec.terminals.screen.BUDGET_S", 0.1)
    emulator = Emulator(100, 300)
    began = time.thread_time()
    whole = drawn(emulator, (slow * (1 << 18))[: 1 << 18] + b"\r\n\x1b[Kthe end")
    assert time.thread_time() - began < 10
    assert not whole
    assert any("the end" in line for line in emulator.lines_of_text())


@pytest.fixture(scope="module")
def tmux() -> Generator[Path]:
    if shutil.which("tmux") is None:
        unavailable("tmux is not installed")
    with tempfile.TemporaryDirectory(prefix="tmux-") as name:
        place = Path(name)
        (place / "conf").write_text("set -g status off\nset -g default-terminal tmux-256color\n")
        run(place, "new-session", "-d", "sleep 600")
        yield place
        run(place, "kill-server")


def run(place: Path, *words: str) -> str:
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TERM": "xterm-256color", "HOME": str(place)}
    command = ["tmux", "-f", str(place / "conf"), "-S", str(place / "socket"), *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=SOON).stdout


def as_tmux_shows(place: Path, data: bytes, rows: int, cols: int) -> list[str]:
    (place / "bytes").write_bytes(data)
    # Its answer to a question about the cursor comes once it has read all before.
    asked = f"stty raw -echo; cat {place}/bytes; printf '\\033[6n'; head -c 1 >/dev/null"
    show = f"{asked}; tmux -S {place}/socket wait-for -S shown; exec sleep 600"
    run(place, "new-session", "-d", "-s", "one", "-x", str(cols), "-y", str(rows), show)
    run(place, "wait-for", "shown")
    lines = run(place, "capture-pane", "-p", "-t", "one").split("\n")[:rows]
    run(place, "kill-session", "-t", "one")
    return [line.rstrip() for line in lines]


def sequences(random: random.Random, rows: int, cols: int) -> bytes:
    """Output of a full-screen program gone mad, out of what xterm and tmux agree about."""

    def number(most: int) -> int:
        return random.randint(1, most)

    flips = itertools.cycle("hl")

    def part() -> str:
        return random.choice(
            [
                "".join(random.choices("abcdefgh ijk", k=number(cols + 5))),
                "\r\n" * number(3),
                "\n",
                "\t",
                "\ryx\b",
                "中文字"[: number(3)],
                f"\x1b[{number(rows + 2)};{number(cols + 2)}H",
                f"\x1b[{number(5)}{random.choice('ABCD')}",
                f"\x1b[{random.choice('012')}{random.choice('JK')}",
                f"\x1b[r\x1b[{number(rows)};1H\x1b[{number(4)}{random.choice('LM')}\r",
                f"\x1b[{number(6)}{random.choice('@PX')}",
                f"\x1b[{number(rows // 2)};{rows // 2 + number(rows // 2)}r",
                "\x1b[r",
                "\x1bM",
                "\x1bD",
                "\x1b7",
                "\x1b8",
                f"\x1b[{number(3)}{random.choice('ST')}",
                f"\x1b[?1049{next(flips)}",
                "\x1b[38;5;12;1mred\x1b[0m",
                "\x1b]0;title\x07",
                "\x1bP+q436f\x1b\\",
                f"\x1b[{number(cols)}G",
                f"\x1b[{number(rows)}d",
                "\x1b[Z",
                "\x1bH",
                f"\x1b[{random.choice('03')}g",
                f"\x1b[?6{random.choice('hl')}",
                f"\x1b[{number(rows)}\r;\b{number(cols)}H",
            ]
        )

    return "".join(part() for _ in range(150)).encode()


@pytest.mark.parametrize(
    ("seed", "rows", "cols"), [(1, 10, 20), (2, 24, 80), (3, 6, 11), (4, 24, 80), (5, 10, 33), (6, 8, 20)]
)
def test_it_shows_what_tmux_shows(tmux: Path, seed: int, rows: int, cols: int) -> None:
    data = sequences(random.Random(seed), rows, cols)
    assert shown(data, rows, cols, piece=13) == as_tmux_shows(tmux, data, rows, cols)


def both(data: bytes, rows: int, cols: int) -> tuple[tuple[int, int], tuple[int, int]]:
    cursor, emulator = Cursor(rows, cols), Emulator(rows, cols)
    cursor.feed(data)
    emulator.feed(data)
    return (cursor.y, min(cursor.x, cols - 1)), (emulator.cursor.y, min(emulator.cursor.x, cols - 1))


@pytest.mark.parametrize("seed", range(40))
def test_it_is_where_the_screen_has_it(seed: int) -> None:
    chosen = random.Random(seed)
    rows, cols = chosen.randint(4, 30), chosen.randint(8, 90)
    parts = sequences(chosen, rows, cols).replace(b"\x1bH", b"").replace(b"\x1b[3g", b"").replace(b"\x1b[0g", b"")
    for end in range(0, len(parts), 100):
        # Nothing is asked within a sequence.
        ours, theirs = both(parts[:end].rpartition(b"\x1b")[0], rows, cols)
        assert ours == theirs


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"", (1, 1)),
        (b"\x1b[999;999H", (6, 11)),
        (b"\x1b[2;4r\x1b[?6h\x1b[2;3H", (2, 3)),
        (b"x" * 11, (1, 11)),
        (b"x" * 12, (2, 2)),
        (b"x" * 1000, (6, 11)),
        ("中文字中文字".encode(), (2, 3)),
        ("e\u0301e\u0301\u200d".encode(), (1, 3)),
        (b"\x1b[?7l" + b"x" * 50, (1, 11)),
        (b"ab\x1b[?1048h\x1b[5;5H\x1b[?1048l", (1, 3)),
        (b"ab\x1b[2\n;\r5H\x1b]0;title\x07\x1bP+q\x1b\\", (2, 5)),
        (b"\x1b[3;3H\x1bc\x1b[>4;2m\x1b[4:3m", (1, 1)),
    ],
)
def test_it_is_told_as_a_terminal_tells_it(data: bytes, place: tuple[int, int]) -> None:
    cursor = Cursor(6, 11)
    cursor.feed(data)
    assert cursor.place() == place


CLIPBOARD = b"\x1b]52;c;c2VjcmV0\x07"


def passed(*pieces: bytes, writable: bool = True, rows: int | None = None) -> bytes:
    filtered = Passing(writable=writable, rows=rows)
    return b"".join(filtered.feed(piece) for piece in pieces)


@pytest.mark.parametrize(
    "drawn",
    [
        b"plain text\r\n\ttab \b\x07 bell",
        "Grüße, 漢字 und 🙂".encode(),
        b"\x1b[1;31mred\x1b[0m\x1b[38;2;1;2;3m\x1b[4:3m",
        b"\x1b[2J\x1b[H\x1b[10;20H\x1b[K\x1b[5A\x1b[3@\x1b[2P\x1b[4L\x1b[1M\x1b[9X\x1b[7b",
        b"\x1b[?1049h\x1b[?25l\x1b[?1h\x1b=\x1b[?7l\x1b[?2004h",
        b"\x1b7\x1b8\x1bM\x1b(0lqk\x1b(B\x1b[3;20r\x1b[4h\x1b[2 q",
    ],
)
def test_drawing_passes_as_it_is(drawn: bytes) -> None:
    assert passed(drawn) == drawn


@pytest.mark.parametrize(
    "asked",
    [
        b"\x1b[c", b"\x1b[0c", b"\x1b[>c", b"\x1b[=c", b"\x1bZ", b"\x05",  # who are you
        b"\x1b[6n", b"\x1b[5n", b"\x1b[?6n", b"\x1b[?15n", b"\x1b[x", b"\x1b[>q",  # where is the cursor, what terminal
        b"\x1b[21t", b"\x1b[14t", b"\x1b[18t", b"\x1b[8;1;1t", b"\x1b[22;0t",  # title and window
        b"\x1b[?1$p", b"\x1b[4$p", b"\x1bP$qm\x1b\\", b"\x1bP+q544e\x1b\\", b"\x1b[1;1;1;1;1;1*y", b"\x1b[?u",
        b"\x1b]4;1;?\x07", b"\x1b]10;?\x07", b"\x1b]11;?\x1b\\",  # colours
        CLIPBOARD, b"\x1b]52;c;?\x07", b"\x1b]9;say\x07", b"\x1b]777;notify;a;b\x07", b"\x1b]1337;File=:AAAA\x07",
        b"\x1b]8;;http://e.example/\x1b\\", b"\x1b]7770;mark\x07", b"\x1b]50;font\x07",
        b"\x1b_Gt=f;L2V0Yy9wYXNzd2Q=\x1b\\", b"\x1b^private\x1b\\", b"\x1bXstart\x1b\\", b"\x1bktitle\x1b\\",
        b"\x1b[5i", b"\x1b[?5i",  # print
        b"\x1b[>1u", b"\x1b[=1;1u", b"\x1b[<u", b"\x1b[>4;2m", b"\x1b[?4m", b"\x1b[2h", b"\x1b[20h",  # keys
        b"\x1b[?1004h", b"\x1b[?2031h", b"\x1b[?2048h", b"\x1b[1;2;3;4;5T", b"\x1b[?3h", b"\x1b[1'z",
        b"\x1b[3J", b"\x1b[03J", b"\x1b[3g", b"\x1bH",  # scrollback and tab stops are the person's
        "\x9b6n".encode()[:2], "\x9d52;c;x\x9c".encode()[:2], b"\x9b", b"\x00", b"\x7f", b"\x18",
    ],
)  # fmt: skip
def test_what_makes_a_terminal_act_is_taken_out(asked: bytes) -> None:
    out = passed(b"before" + asked + b"after")
    assert out.replace("\N{REPLACEMENT CHARACTER}".encode(), b"") == b"beforeafter"


def test_a_sequence_in_pieces_is_what_it_is_whole() -> None:
    whole = (
        b"a\x1b[1;31mb\x1b]0;title\x07c" + CLIPBOARD + "d\u00e9\u6f22".encode() + b"\x1b[?1049;1004h\x1bP$q\x1bX\x1b\\e"
    )
    wanted = passed(whole)
    for cut in range(len(whole) + 1):
        assert passed(whole[:cut], whole[cut:]) == wanted, cut
    assert passed(*(whole[i : i + 1] for i in range(len(whole)))) == wanted
    assert b"\x1b[?1049h" in wanted
    assert b"1004" not in wanted


def test_controls_within_a_sequence_do_not_hide_it() -> None:
    # A terminal carries out what lies within a sequence, goes on with it after, and begins anew at an escape.
    for asked in (
        b"\x1b[\x056n",
        b"\x1b[6\x0an",
        b"\x1b[\x1b[6n",
        b"\x1b]52;c\x1b[6n",
        b"\x1b[6\x18\x1b[6n",
        b"\x1b\x1b[6n",
    ):
        out = passed(asked)
        assert b"n" not in out or b"\x1b" not in out, (asked, out)


ALLOWED = re.compile(
    rb"\x1b\[[0-9;:]*[@A-IKLMPSXZ`abdefmrsTJhl]|\x1b\[[0-9]* q|\x1b\[\?[0-9;]+[hl]|\x1b[78=>DEM]|\x1b[()][0-~]|\x1b#8"
    rb"|\x1b\[u|\x1b\[22;0t|\x1b\][012];[^\x00-\x1f\x7f]*\x1b\\|[\x07-\x0f]|[^\x00-\x1f\x7f]"
)


def test_whatever_a_program_prints_only_what_draws_comes_out() -> None:
    seeded = random.Random(8)
    signs = [bytes([sign]) for sign in b"\x1b\x1b[]P\\\x07?>;1cnhm6t\x18\x05$qJ3k \x9b\xc3"]
    parts = [*signs, b"52;c;", b"1049", b"0;", b"text", b"\xc2\x9b"]
    for _ in range(3000):
        pieces = [b"".join(seeded.choices(parts, k=seeded.randrange(1, 12))) for _ in range(4)]
        out = passed(*pieces)
        rest = ALLOWED.sub(b"", out)
        assert rest == b"", (pieces, out)
        assert not re.search(rb"\xc2[\x80-\x9f]|\x1b\[[0-9;]*[cnt](?<!22;0t)", out), (pieces, out)


def test_who_only_looks_on_gets_no_mouse_and_no_marked_paste() -> None:
    assert passed(b"\x1b[?1000;1006h\x1b[?2004h", writable=False) == b""
    assert passed(b"\x1b[?1000;1006h") == b"\x1b[?1000;1006h"


def test_margins_keep_the_program_in_its_rows() -> None:
    assert passed(b"\x1b[r", rows=24) == b"\x1b[1;24r"
    assert passed(b"\x1b[r") == b"\x1b[r"


def test_it_takes_the_terminal_back_to_how_it_was() -> None:
    filtered = Passing(writable=True)
    filtered.skip(b"\x1b]0;old\x07\x1b[?1049h\x1b[?1h\x1b[?25l\x1b[?1000h\x1b=")
    assert filtered.alternate
    assert filtered.enter().startswith(b"\x1b[?1049h")
    for switched in (b"\x1b[?1h", b"\x1b[?25l", b"\x1b[?1000h", b"\x1b="):
        assert switched in filtered.modes()
    left = filtered.leave()
    for back in (b"\x1b[?1049l", b"\x1b[?1l", b"\x1b[?25h", b"\x1b>", INPUT_OFF.encode(), b"\x1b[m"):
        assert back in left
    assert b"\x1b[23;0t" not in left  # no title was set on this terminal
    assert filtered.feed(b"\x1b]2;new\x07") == b"\x1b[22;0t\x1b]2;new\x1b\\"
    assert b"\x1b[23;0t" in filtered.leave()


def test_a_reset_by_the_program_is_one_of_its_own_screen() -> None:
    out = passed(b"\x1b[?1049h\x1bc")
    assert b"\x1bc" not in out
    assert b"\x1b[?1049l" in out
    assert not re.search(rb"\x1b\[3J", out)


def test_what_never_ends_is_not_kept() -> None:
    filtered = Passing(writable=True)
    assert filtered.feed(b"\x1b]0;" + b"x" * 1_000_000) == b""
    assert filtered.feed(b"\x07after") == b"after"
    filtered = Passing(writable=True)
    filtered.feed(b"\x1b[" + b"1;" * 100_000)
    assert len(filtered.feed(b"")) == 0


def test_what_was_switched_long_ago_still_holds() -> None:
    passing = Passing(writable=True)
    passing.skip_all(b"\x1b[?1049h\x1b[?1000;1006h" + b"\r" * 100 + b"\x1b[31mred\x1b[?25l\x1b]0;no title")
    passing.skip_all(b"\x1b[?25h\x1b[?1h")
    assert passing.alternate
    assert passing.modes() == b"\x1b[?1000h\x1b[?1006h\x1b[?1h"
    assert passing.feed(b"drawn") == b"drawn"
