"""Programs that run their arguments: the commands that they carry, and why a rule for them would allow anything."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


SHELLS: Final = names("sh bash dash ash zsh ksh mksh fish rbash csh tcsh")
_SHELL_VALUED: Final = names("-o +o -O +O --rcfile --init-file")
INTERPRETER: Final = re.compile(
    r"(?:python|pypy|perl|ruby|node|nodejs|deno|bun|php|lua|luajit|tclsh|wish|guile|Rscript|R|julia|java|groovy|scala|"
    r"[gmn]?awk|osascript|erl|elixir|ghci?|irb|ts-node|tsx|npx|pnpx|bunx|uvx|pipx|gdb|lldb|vim?|nvim|ex|view|emacs|ed|"
    r"expect|sqlite3|psql|mysql|m4|bc|dc|jshell|pwsh|powershell)(?:-?[0-9][0-9.]*)?"
)
_STEERS: Final = names("""
    eval source . trap alias bind complete compgen mapfile readarray fc export declare typeset local readonly set shopt
    enable hash unset umask ulimit
    """)


@dataclass(frozen=True, slots=True)
class _Wrapper:
    """The arguments of a wrapper: options that take a value, then a number of operands, then the command."""

    valued: frozenset[str] = frozenset()
    operands: int = 0
    text: frozenset[str] = frozenset()
    """Options whose value is a command line for a shell."""
    assignments: bool = False


def _wrapper(valued: str = "", operands: int = 0, text: str = "", *, assignments: bool = False) -> _Wrapper:
    return _Wrapper(names(valued), operands, names(text), assignments)


_WRAPPERS: Final = {
    **dict.fromkeys(
        names("""
            nohup setsid unbuffer command builtin busybox toybox bwrap capsh dbus-run-session torsocks coproc eatmydata
            entr
            """),
        _wrapper(),
    ),
    "sudo": _wrapper(
        "-u --user -g --group -h --host -p --prompt -C --close-from -r --role -t --type -T -U -D --chdir -R --chroot",
        assignments=True,
    ),
    "doas": _wrapper("-u -C"),
    "su": _wrapper("-s --shell -g -G -w", 0, "-c --command --session-command"),
    "runuser": _wrapper("-u --user -s --shell -g -G -w", 0, "-c --command --session-command"),
    "pkexec": _wrapper("--user"),
    "env": _wrapper("-u --unset -C --chdir", text="-S --split-string", assignments=True),
    "nice": _wrapper("-n --adjustment"),
    "ionice": _wrapper("-c --class -n --classdata -p -P -u"),
    "chrt": _wrapper("-T -P -D", 1),
    "taskset": _wrapper("", 1),
    "timeout": _wrapper("-s --signal -k --kill-after", 1),
    "time": _wrapper("-f --format -o --output"),
    "stdbuf": _wrapper("-i --input -o --output -e --error"),
    "exec": _wrapper("-a"),
    "xargs": _wrapper(
        "-I -i -n --max-args -P --max-procs -L --max-lines -d --delimiter -E -e -s --max-chars -a --arg-file"
    ),
    "parallel": _wrapper("-j --jobs -a --arg-file -I -n -N -L -d -S"),
    "chroot": _wrapper("--userspec --groups", 1),
    "unshare": _wrapper("-S -G -R --root -w --wd --setuid --setgid --propagation"),
    "nsenter": _wrapper("-t --target -S -G --setuid --setgid"),
    "flock": _wrapper("-w --timeout -E --conflict-exit-code", 1, "-c --command"),
    "script": _wrapper("-I -O -B -T -m -E -o", 0, "-c --command"),
    "watch": _wrapper("-n --interval"),
    "strace": _wrapper("-e -o -p -s -a -u -E -I -O -P -S -b"),
    "ltrace": _wrapper("-e -o -p -s -a -u -n -l -x"),
    "setarch": _wrapper("", 1),
    "setpriv": _wrapper("--reuid --regid --groups"),
    "systemd-run": _wrapper("-p --property -u --unit --uid --gid -M -H --slice -E --setenv --working-directory"),
    "faketime": _wrapper("-f", 1),
    "fakeroot": _wrapper("-l -s -i"),
    "proxychains": _wrapper("-f"),
    "prlimit": _wrapper("-p --pid"),
}
_FINDERS: Final = frozenset(("find", "fd", "fdfind"))
CARRIERS: Final = SHELLS | frozenset(_WRAPPERS) | _FINDERS | {"eval", "source"}
_JOINS: Final = frozenset(("watch", "parallel"))
"""Programs that hand their words to a shell."""
_FIND_RUNS: Final = frozenset(("-exec", "-execdir", "-ok", "-okdir"))
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


_STEPS: Final = 64
Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """A command line that a program hands to a shell."""

    text: str


def name_of(word: str) -> str:
    """A program's name without its directory."""
    return word.rstrip("/").rpartition("/")[2]


def carried(words: Sequence[str]) -> Iterator[tuple[str, ...] | Text]:
    """The commands and command lines that a known wrapper would run; one level deep."""
    if not words:
        return
    name = name_of(words[0])
    if name in SHELLS:
        yield from _of_shell(words)
    elif name == "eval":
        yield Text(" ".join(word for word in words[1:] if word != "--"))
    elif name in _FINDERS:
        yield from _of_find(words)
    elif name == "command" and words[1:2] in (("-v",), ("-V",)):
        return  # `command -v` only looks a name up
    elif name in _WRAPPERS:
        for inner in _of_wrapper(_WRAPPERS[name], words):
            yield Text(" ".join(inner)) if name in _JOINS and not isinstance(inner, Text) else inner


def unfolded(words: Words) -> Iterator[tuple[Words, list[Words], list[str]]]:
    """A command and the commands that it carries, up to a bound, each with the commands and lines that it runs."""
    stack = [words]
    for _ in range(_STEPS):
        if not stack:
            return
        words = stack.pop()
        inner = list(carried(words))
        lists = [one for one in inner if not isinstance(one, Text) and len(one) < len(words)]
        stack += lists
        yield words, lists, [one.text for one in inner if isinstance(one, Text)]


def runs_anything(words: Sequence[str]) -> str | None:
    """The reason why no rule may allow this command: it runs code outside its words; None if a rule may."""
    name = name_of(words[0])
    if "/" in words[0]:
        return f"{words[0]} is a file whose content may change"
    if name in SHELLS or INTERPRETER.fullmatch(name):
        return f"{name} runs whatever code it is given"
    if name in _STEERS:
        return f"{name} changes what later commands do"
    finds = name in _FINDERS and any(
        word in ("-x", "-X") or word.startswith(("--exec", "-exec", "-ok")) for word in words[1:]
    )
    runs = finds or name in _WRAPPERS or name in ("ssh", "at", "batch", "crontab")
    return f"{name} runs another command" if runs else None


def _of_shell(words: Sequence[str]) -> Iterator[Text]:
    at, takes_text = 1, False
    while at < len(words) and words[at][:1] in ("-", "+") and len(words[at]) > 1:
        word = words[at]
        if word == "--":
            at += 1
            break
        if not word.startswith("--") and word.startswith("-") and "c" in word[1:]:
            takes_text = True
        at += 2 if word in _SHELL_VALUED else 1
    if takes_text and at < len(words):
        yield Text(words[at])


def _of_find(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    at = 1
    while at < len(words):
        at += 1
        if words[at - 1] in _FIND_RUNS or words[at - 1] in ("-x", "-X", "--exec", "--exec-batch"):
            end = next((end for end in range(at, len(words)) if words[end] in (";", "+")), len(words))
            if at < end:
                yield tuple(words[at:end])
            at = end


def _of_wrapper(wrapper: _Wrapper, words: Sequence[str]) -> Iterator[tuple[str, ...] | Text]:
    at, operands = 1, wrapper.operands
    while at < len(words):
        word = words[at]
        option, separator, value = word.partition("=")
        if word == "--":
            at += 1
        elif option in wrapper.text:
            yield Text(value if separator else " ".join(words[at + 1 : at + 2]))
            at += 1 if separator else 2
        elif word.startswith("-S") and "-S" in wrapper.text:
            yield Text(word[2:])
            at += 1
        elif word in wrapper.valued:
            at += 2
        elif word.startswith("-") and len(word) > 1:
            clustered = next(
                (o for o in wrapper.text if len(o) == 2 and not word.startswith("--") and o[1] == word[-1]), None
            )
            if clustered and at + 1 < len(words):
                yield Text(words[at + 1])
            at += 1
        elif (wrapper.assignments and _ASSIGNMENT.match(word)) or word == "-":
            at += 1
        elif operands:
            operands -= 1
            at += 1
        else:
            yield tuple(words[at:])
            return
