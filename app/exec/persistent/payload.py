"""The input that makes a persistent shell run a command: first the trigger line, then the payload.

The trigger makes bash read the payload with `read -s`, which switches the terminal's echo off and on again. So the
payload, which contains the names of marks, is never shown. The payload is one text without control characters. Words
that an alias could change are quoted. Our output goes to the terminal, even if the shell's output is redirected. Output
of traps and of `set -x` about our commands is discarded. The command runs as if it had been typed: in no function, with
the previous command's status in `$?`. An unfinished command would continue into our own words. So another bash parses
it first; if that bash refuses the command, no part of the command runs.

Bash reads the payload byte by byte, which takes longer than all else. So the texts that are the same for each command
are in an array of the shell, the library, and the payload evaluates them. R tells which library a shell has; one that
has none, or another, is given it first. A command can change the library, as it can change any builtin of its shell.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shellback.exec.persistent.marks import quoted
from shellback.exec.policy.classify.grammar import unfinished

END: Final = b"\x01"
"""Ends the payload; a terminal in non-canonical mode passes this byte on."""
KNOWN: Final = b"k"
_HOOK: Final = "#7770"
_AS_IT_WAS: Final = b'case $PWD in "$__sl"/.|"$__sl"/./*)PWD=$__sl;;esac'
"""Restores PWD if the directory was removed: each `cd -P .` then gives the directory another name."""
_BEFORE: Final = b'case $__so in "")\\builtin unset OLDPWD;\\builtin declare -gx OLDPWD;;*)OLDPWD=$__so;;esac'
"""Restores OLDPWD, which is unset in a shell that has been in one directory only."""
_CHECKED: Final = b'(BASH_ENV= \\builtin exec -a bash /proc/self/exe -nO extglob -c -- "$__sb")'
"""Makes another process of the same bash parse `__sb`; no part of it is run."""
_REMEMBERED: Final = (
    b"{ case :$SHELLOPTS:${HISTCONTROL-}:${HISTIGNORE:+ignored} in *ignore[sb]*|*:ignored);;"
    b'*:history:*)\\builtin history -d -1||:;;esac;\\builtin history -s -- "$__sb"||:;} >/dev/null 2>&1;'
)
"""Makes `history` list the command as if it had been typed, and not the trigger line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The names of the marks around one command."""

    ready: str
    start: str
    end: str
    prompt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """A command may leave the shell in `roots` (paths as the shell sees them); else the shell is moved to `back`."""

    roots: Sequence[str]
    back: str


def trigger(ready: str) -> bytes:
    """The trigger line; when the shell reads the payload, R reports its last status, its options and its library."""
    return (
        f" IFS= \\builtin read -rsd $'\\1' -p $'\\e]7770;R;{ready};'\"${{__sq-$?}};$-;${{__sp-}}\"$'\\'\\a' __sb"
        ' 2>/dev/tty&&{ \\builtin set +vx;} 2>/dev/null&&\\builtin eval "$__sb"\n'
    ).encode("ascii")


def payload(command: str, frame: Frame, bounds: Bounds, *, status: int, options: str, library: str = "") -> bytes:
    """The payload of a command. The last three are from R: when the command starts, the first two are as before."""
    # Without this line, `set -e` and traps on ERR would act on the status of `eval`, where the command's is exempt.
    after = b"" if "v" in options or "<<" in command else b"${__sp[4]}"
    run = b'\\builtin eval "${__sp[2]}"%b"${__sp[3]}"%b"$__sb%b"' % (
        frame.start.encode(),
        quoted(_restored(status, options) + b"\n"),
        after,
    )
    if unfinished(command):
        refused = b"%b;%b||__sq=2;\\builtin unset __sb" % (_mark("S", frame.start), _CHECKED)
        run = b"if %b 2>/dev/null;then %b;else %b;fi" % (_CHECKED, run, refused)
    # Where the hooks cannot be set, nothing runs: the next P mark then says that the shell has not begun the command.
    return b'%b__sb=%b;\\builtin eval "${__sp[1]}"&&{ %b;%b;}%b' % (
        _installed(frame, bounds, library),
        quoted(command.encode("utf-8", "surrogateescape")),
        run,
        _ended(frame, bounds),
        END,
    )


def setup(frame: Frame, bounds: Bounds, *, prompt: str) -> bytes:
    """The payload of a new shell: sets its prompt and switches its history file off."""
    inner = (
        b"\\builtin history -c;HISTFILE= HISTCONTROL=ignorespace;\\builtin export HISTFILE HISTCONTROL;PS1=%b"
        % quoted(prompt.encode())
    )
    return b"\\builtin unset __sb;%b%b%b;%b\n%b%b" % (
        _installed(frame, bounds, ""),
        _hooked(frame.prompt),
        inner,
        _mark("S", frame.start),
        _ended(frame, bounds),
        END,
    )


def _mark(kind: str, name: str) -> bytes:
    # Its last argument, an empty word, becomes the value of `$_`.
    return f"\\builtin printf '\\e]7770;{kind};{name}\\a%s' ''>/dev/tty".encode("ascii")


def _restored(status: int, options: str) -> bytes:
    parts = [b""]
    modes = "".join(option for option in options if option in "vx")
    if modes:
        parts.append(f"{{ \\builtin set -{modes};}} 2>/dev/null".encode("ascii"))
    if status:
        # No command may fail here: with `set -e`, a failure would end the shell.
        parts.append(f"{{ (\\builtin exit {status})&&:;}} 2>/dev/null".encode("ascii"))
    return b";".join(parts)


def library(frame: Frame, bounds: Bounds) -> str:
    """The name of the library that a shell of this session has after its first payload."""
    return _library(frame.prompt, tuple(bounds.roots))[0]


def _installed(frame: Frame, bounds: Bounds, has: str) -> bytes:
    """Give the shell the library, unless it has it."""
    name, text = _library(frame.prompt, tuple(bounds.roots))
    return b"" if name == has else text


@functools.lru_cache(maxsize=256)
def _library(prompt: str, roots: tuple[str, ...]) -> tuple[str, bytes]:
    """The name of the library of one session, and the text that installs it; an array is not exported.

    Its parts: its name; what is done before a command; what is around the name of S; what follows the command; what is
    done after it. The name of E comes only after the command, which must not see it.
    """
    begin, end = _mark("S", "\n").split(b"\n")
    parts = [
        b"\\builtin unset __sq;%b%b" % (_hooked(prompt), _REMEMBERED),
        b"\\builtin unset __sb;" + begin,
        end,
        b"\n\n{ __sq=$?;} >/dev/null 2>&1",
        _told(roots),
    ]
    words = b" ".join(map(quoted, parts))
    name = hashlib.sha256(words).hexdigest()[:8]
    return name, b"__sp=(%b %b);" % (name.encode(), words)


@functools.lru_cache(maxsize=256)
def _hooked(name: str) -> bytes:
    """Print P before each prompt and C before each line is run, also in an inner shell; keep what the hooks had.

    P reports the status, and `KNOWN` if this shell has run a payload; a shell that replaced it by `exec` has not.
    """
    said = f'\'\\e]7770;P;{name};%s;%s\\a\' "$?" "${{__sh-}}"'
    prompt = f"{{ \\builtin printf {said}>/dev/tty;}} 2>/dev/null {_HOOK}\n".encode("ascii")
    line = f"\x1b]7770;C;{name}\a".encode("ascii")
    variables = ((b"PROMPT_COMMAND", prompt, f"{_HOOK}?".encode("ascii")), (b"PS0", line, b"$'\\a'"))
    set_each = b"".join(
        b'%b=%b"${%b#*%b}";' % (variable, quoted(text), variable, end) for variable, text, end in variables
    )
    return b"%b\\builtin export PROMPT_COMMAND PS0;__sh=%b;\\builtin export -n __sh;" % (set_each, KNOWN)


def _ended(frame: Frame, bounds: Bounds) -> bytes:
    # The status is kept in a variable: if it were returned, `set -e` and traps would see another failure.
    return b'{ __sq=${__sq-$?} __sn=%b __sk=%b;\\builtin eval "${__sp[5]}";} >/dev/null 2>&1' % (
        frame.end.encode(),
        quoted(os.fsencode(bounds.back)),
    )


def _told(roots: Sequence[str]) -> bytes:
    """Print E with the name `__sn`; before that, move the shell back to `__sk` if it has left its allowed directories.

    The physical directory counts: a symlink can lead out as `..` does.
    """
    inside = b"|".join(b"%b|%b" % (quoted(root), _below(root)) for root in map(os.fsencode, roots))
    return b"".join(
        [
            b"__sl=${PWD-} __so=${OLDPWD-};",
            b'if \\builtin cd -P .;then case $PWD in %b) \\builtin cd -L "$__sl"||' % inside,
            b"%b;%b;__sl=;;" % (_AS_IT_WAS, _BEFORE),
            b'*) __sl=$PWD;\\builtin cd "$__sk"||\\builtin cd %b||:;OLDPWD=$PWD;;esac;else __sl=;fi;'
            % quoted(os.fsencode(roots[0])),
            # A directory whose path is longer than the kernel accepts is not reported.
            b"__so=$PWD;case $((${#__so}>4095)) in 1)__so=;;esac;case $((${#__sl}>4095)) in 1)__sl=...;;esac;",
            b"\\builtin printf '\\e]7770;E;%s;%s;%q\\037%q\\a' ",
            b'"$__sn" "$__sq" "$__so" "$__sl">/dev/tty;\\builtin unset __sl __so __sn __sk',
        ]
    )


def _below(root: bytes) -> bytes:
    return quoted(root.rstrip(b"/") + b"/") + b"*"
