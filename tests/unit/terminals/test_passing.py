"""What of a program's output reaches a person's terminal: drawing does, and nothing that makes the terminal act."""

from __future__ import annotations

import random
import re

import pytest

from shellback.exec.terminals.attaching import INPUT_OFF, Passing

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
