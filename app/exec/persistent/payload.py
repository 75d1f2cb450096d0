"""What is typed into a shell to have it run a command: first a line that asks for the rest, then the rest.

The line makes bash read on without showing what it reads (`read -s` switches the terminal by itself, and back), so the
rest, which has the names of marks, is seen nowhere. It is one text without control characters. All words that an alias
could change are quoted, all output of ours goes to the terminal whatever the shell's own goes to, and what traps and
`set -x` would print about us goes nowhere. The command itself runs where it would have, had it been typed: in no
function, with the status of the one before. What is not finished as it stands would go on into words of ours, so bash
is asked about it first, and runs nothing of what it would refuse.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shellback.exec.persistent.marks import quoted
from shellback.exec.policy.classify.grammar import unfinished

END: Final = b"\x01"
"""Ends what the line asked for; a terminal that reads single characters lets it through."""
KNOWN: Final = b"k"
_HOOK: Final = "#7770"
_AS_IT_WAS: Final = b'case $PWD in "$__sl"/.|"$__sl"/./*)PWD=$__sl;;esac'
"""For a directory that has been removed: `cd -P .` makes up another name for it each time."""
_BEFORE: Final = b'case $__so in "")\\builtin unset OLDPWD;\\builtin declare -gx OLDPWD;;*)OLDPWD=$__so;;esac'
"""A shell that has been in one directory only has no other to go back to."""
_CHECKED: Final = b'(BASH_ENV= \\builtin exec -a bash /proc/self/exe -nO extglob -c -- "$__sb")'
"""What is in `__sb` as another bash reads it, of the same program; nothing of it is run."""
_REMEMBERED: Final = (
    b"{ case :$SHELLOPTS:${HISTCONTROL-}:${HISTIGNORE:+ignored} in *ignore[sb]*|*:ignored);;"
    b'*:history:*)\\builtin history -d -1||:;;esac;\\builtin history -s -- "$__sb"||:;} >/dev/null 2>&1;'
)
"""`history` has the command as if it had been typed, and not the line that asked for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The names of the marks around one command."""

    ready: str
    start: str
    end: str
    prompt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Where a command may leave the shell: `roots`, as the shell sees them; `back` is where it is put else."""

    roots: Sequence[str]
    back: str


def trigger(ready: str) -> bytes:
    """The line that asks for a command; prints R with the last status and the shell's options once it listens."""
    return (
        f" IFS= \\builtin read -rsd $'\\1' -p $'\\e]7770;R;{ready};'\"${{__sq-$?}};$-\"$'\\'\\a' __sb 2>/dev/tty"
        '&&{ \\builtin set +vx;} 2>/dev/null&&\\builtin eval "$__sb"\n'
    ).encode("ascii")


def payload(command: str, frame: Frame, bounds: Bounds, *, status: int, options: str) -> bytes:
    """What the line asked for. `status` and `options` are what R said: the command finds both as they were."""
    before = b"\\builtin unset __sb;" + _begun(frame.start, status, options) + b"\n"
    # Else `set -e` and a trap on ERR would hold against us what the command was allowed to say.
    after = b"" if "v" in options or "<<" in command else b"\n\n{ __sq=$?;} >/dev/null 2>&1"
    run = b'\\builtin eval %b"$__sb"%b' % (quoted(before), quoted(after))
    if unfinished(command):
        refused = b"%b;%b||__sq=2;\\builtin unset __sb" % (_mark("S", frame.start), _CHECKED)
        run = b"if %b 2>/dev/null;then %b;else %b;fi" % (_CHECKED, run, refused)
    return b"__sb=%b;\\builtin unset __sq;%b%b%b;%b%b" % (
        quoted(command.encode("utf-8", "surrogateescape")),
        _hooked(frame.prompt),
        _REMEMBERED,
        run,
        _ended(frame, bounds),
        END,
    )


def setup(frame: Frame, bounds: Bounds, *, prompt: str) -> bytes:
    """What a new shell is told: how it prompts, and to keep no file of what is typed."""
    inner = (
        b"\\builtin history -c;HISTFILE= HISTCONTROL=ignorespace;\\builtin export HISTFILE HISTCONTROL;PS1=%b"
        % quoted(prompt.encode())
    )
    return b"\\builtin unset __sb;%b%b;%b\n%b%b" % (
        _hooked(frame.prompt),
        inner,
        _mark("S", frame.start),
        _ended(frame, bounds),
        END,
    )


def _mark(kind: str, name: str) -> bytes:
    # The empty word is what `$_` is then.
    return f"\\builtin printf '\\e]7770;{kind};{name}\\a%s' ''>/dev/tty".encode("ascii")


def _begun(name: str, status: int, options: str) -> bytes:
    parts = [_mark("S", name)]
    modes = "".join(option for option in options if option in "vx")
    if modes:
        parts.append(f"{{ \\builtin set -{modes};}} 2>/dev/null".encode("ascii"))
    if status:
        # No command may fail here: under `set -e` that would be the end of the shell.
        parts.append(f"{{ (\\builtin exit {status})&&:;}} 2>/dev/null".encode("ascii"))
    return b";".join(parts)


@functools.lru_cache(maxsize=256)
def _hooked(name: str) -> bytes:
    """Have P printed before each prompt and C before each line is run, also in a shell inside, beside what is there.

    P tells the status, and `KNOWN` where the shell is one that has had a command of ours: after `exec` it is not.
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
    """Print E; before that, put the shell back where it has left the directories in which it may be.

    Its physical directory counts: a symlink leads out as well as `..` does.
    """
    inside = b"|".join(b"%b|%b" % (quoted(root), _below(root)) for root in map(os.fsencode, bounds.roots))
    back, root = quoted(os.fsencode(bounds.back)), quoted(os.fsencode(bounds.roots[0]))
    return b"".join(
        [
            b"{ __sq=${__sq-$?} __sl=${PWD-} __so=${OLDPWD-};",
            b'if \\builtin cd -P .;then case $PWD in %b) \\builtin cd -L "$__sl"||' % inside,
            b"%b;%b;__sl=;;" % (_AS_IT_WAS, _BEFORE),
            b"*) __sl=$PWD;\\builtin cd %b||\\builtin cd %b||:;OLDPWD=$PWD;;esac;else __sl=;fi;" % (back, root),
            # A directory with a longer name than the kernel takes is not told.
            b"__so=$PWD;case $((${#__so}>4095)) in 1)__so=;;esac;case $((${#__sl}>4095)) in 1)__sl=...;;esac;",
            b"\\builtin printf '\\e]7770;E;%b;%%s;%%q\\037%%q\\a' " % frame.end.encode(),
            b'"$__sq" "$__so" "$__sl">/dev/tty;',
            # The status stays behind in a variable: returned, it would be another failure to `set -e` and traps.
            b"\\builtin unset __sl __so;} >/dev/null 2>&1",
        ]
    )


def _below(root: bytes) -> bytes:
    return quoted(root.rstrip(b"/") + b"/") + b"*"
