"""Commands that would attack Shellback: its processes, its records, its approvals and rules."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from shellback.exec.policy.rules.carriers import Text, carried, name_of, names
from shellback.exec.policy.rules.damage import Where
from shellback.exec.policy.rules.loose import HOLE

_VARIABLE: Final = re.compile(rf"{HOLE}(?:EXEC|SHELLBACK|DBOS)_[A-Za-z0-9_]*{HOLE}")
_VARIABLE_NAME: Final = re.compile(r"(?:EXEC|SHELLBACK|DBOS)_[A-Za-z0-9_]*")
_NAMES: Final = re.compile(
    r"shellback|supervisor|\bkeeper\b|exec[-_]worker|\bapp (?:worker|supervisor)\b", re.IGNORECASE
)
_EVERYBODY: Final = frozenset(("", ".", ".*", "^", "$", "^.*", ".+", ".*$", "^.*$", ".?", "[a-z]", "\\w", "*"))
_SETTERS: Final = names("export declare typeset readonly local unset read printenv getopts mapfile readarray")
_TRACERS: Final = {
    **dict.fromkeys(names("gdb lldb strace ltrace perf prlimit"), "-p --pid --attach --attach-pid"),
    **dict.fromkeys(names("nsenter criu"), "-t --target --tree"),
    **dict.fromkeys(names("taskset chrt"), "-p --pid"),
    **dict.fromkeys(names("reptyr gcore jstack injcode renice"), "-p --pid"),
}
"""Programs that trace or enter a process, with the options that name it."""
_OPERANDS: Final = {"gdb": 1, "renice": 1, "reptyr": 0, "gcore": 0, "jstack": 0, "injcode": 0}
"""Programs whose operands name the process too, after this many others."""
_ZERO: Final = {
    "kill": (("-0",), ("-s", "0"), ("-n", "0"), ("--signal", "0"), ("--signal=0",)),
    "pkill": (("-0",), ("--signal", "0"), ("--signal=0",)),
    "killall": (("-0",), ("-s", "0"), ("--signal", "0"), ("--signal=0",)),
}
"""The first option with which each sends signal 0; for other programs these letters differ (`pkill -s`)."""
_OPERAND: Final = rf"[^-*?\[{HOLE}][^{HOLE}]*"
_HARMLESS: Final = re.compile(rf"-[efioqruvx]+|--(?![sq])[a-z-]*|{_OPERAND}")
_HARMLESS_TO_KILL: Final = re.compile(rf"--|{_OPERAND}")
_KILLS: Final = names("kill pkill killall skill snice pgrep pidof fuser killall5")
_SERVICES: Final = names("systemctl service initctl supervisorctl sv rc-service")
_STOPS: Final = names("stop kill restart disable mask reload try-restart edit set-property freeze revert")
NAMES: Final = frozenset(_TRACERS) | _KILLS | _SERVICES | _SETTERS | {"shellback", "ps", "lsof"}
_DECIDES: Final = {
    "approvals": frozenset(("approve", "deny")),
    "rules": frozenset(("add", "revoke")),
    "supervisor": None,
    "worker": None,
    "adopt": None,
    "prune": None,
    "migrate": None,
    "kill": None,
    "stop": None,
}
_PROC: Final = re.compile(r"/proc/(?:1/(?:mem|fd|root|map_files)\b|PARENT/(?!(?:comm|stat|status|cmdline|limits)$))")
_SOCKET: Final = re.compile(
    r"(?:shellback|supervisor|approval|keeper)[^/]*\.?sock(?:et)?$|supervisor/sock$", re.IGNORECASE
)


def attack(words: Sequence[str], assigned: Iterable[str], redirects: Iterable[str], where: Where) -> str | None:
    """The reason why this command must not run: it attacks Shellback; None if it does not."""
    redirects = tuple(redirects)
    for word in (*words, *redirects):
        if _VARIABLE.search(word):
            return f"it uses {_plain(word)}, which belongs to the program that runs it"
        named = _record(word, where) if "/" in word or "sock" in word or word.startswith("~") else None
        if named is not None:
            return named
    taken = next((name for name in assigned if _VARIABLE_NAME.fullmatch(name)), None)
    if taken is None and words and name_of(words[0]) in (*_SETTERS, "env"):
        taken = next(
            (one for word in words[1:] if (one := _VARIABLE_NAME.match(word.partition("=")[0])) is not None), None
        )
        taken = taken and taken.group()
    if taken is not None:
        return f"{taken} belongs to the program that runs it"
    return _by_name(words) if words else None


def _by_name(words: Sequence[str]) -> str | None:
    name = name_of(words[0])
    if name in _KILLS:
        return None if _only_tries(words) else _kill_by_name(name, words[1:])
    if name in _TRACERS and any(_is_ours(word) for word in _held(name, words)):
        return f"{name} takes hold of the process that runs it"
    if name in _SERVICES and set(words[1:]) & _STOPS and any(_NAMES.search(word) for word in words[1:]):
        return "it stops or changes the program that runs it"
    return _decides(words)


def _held(name: str, words: Sequence[str]) -> Iterator[str]:
    """The processes that a tracer is to attach to, without other numbers of its or its command's arguments."""
    run = next((one for one in carried(words) if not isinstance(one, Text)), ())
    own = list(words[1 : len(words) - len(run)])
    if "--args" in own:
        del own[own.index("--args") :]
    short, *long = _TRACERS[name].split()
    told = [at for at, word in enumerate(own) if re.match(rf"-[a-zA-Z]*{short[1]}", word)]
    told += [at for at, word in enumerate(own) if len(word) > 3 and any(one.startswith(word[:4]) for one in long)]
    if name in ("taskset", "chrt"):
        # It comes after a mask or priority; alone, the program only prints its state.
        yield from [word for word in words[1:] if not word.startswith("-")][1:] if told else ()
        return
    for at in told:
        attached = own[at].partition("=" if own[at].startswith("--") else short[1])[2]
        yield from re.split(r"[,\s]+", attached or " ".join(words[at + 2 : at + 3]))
    valued = {at + 1 for at, word in enumerate(own) if word in ("-n", "--priority")} if name == "renice" else set[int]()
    operands = [word for at, word in enumerate(own) if not word.startswith("-") and at not in valued]
    if name in _OPERANDS:
        yield from operands[0 if valued else _OPERANDS[name] :]


def _only_tries(words: Sequence[str]) -> bool:
    """Whether the only signal is 0, which tests that a process exists and has no effect."""
    name = name_of(words[0])
    told = next((form for form in _ZERO.get(name, ()) if tuple(words[1 : 1 + len(form)]) == form), None)
    if told is None:
        return False
    rest = [word.replace(f"{HOLE}PPID{HOLE}", "1") for word in words[1 + len(told) :]]
    if name != "kill":
        return all(map(_HARMLESS.fullmatch, rest))
    # An unknown word may be an option, so it does not count as the only process.
    return all(map(_HARMLESS_TO_KILL.fullmatch, rest)) or (len(rest) == 1 and rest[0].startswith(HOLE))


def _kill(words: Sequence[str]) -> str | None:
    targets = list(words)
    if targets and targets[0] in ("-l", "-L", "--list", "--table"):
        return None
    if targets and targets[0] in ("-s", "-n", "--signal", "-q", "--queue"):
        targets = targets[2:]
    elif targets and targets[0] not in ("--", "-1") and targets[0].startswith("-"):
        targets = targets[1:]
    elif len(targets) > 1 and targets[0] == "-1":
        targets = targets[1:]  # signal 1
    for word in targets:
        if word in ("--", ""):
            continue
        if word.lstrip("-+0") == "1" or _is_ours(word):
            return "it would signal the process that runs it, or every process there is"
        if _NAMES.search(word):
            return "it would signal the program that runs it"
    return None


def _kill_by_name(name: str, words: Sequence[str]) -> str | None:
    if name == "kill":
        return _kill(words)
    if name == "killall5":
        return "it ends every process"
    for at, word in enumerate(words):
        if _NAMES.search(word) and not word.startswith("--"):
            # A search for our processes counts too: another command of the line may end what it prints.
            return None if name in ("pgrep", "pidof") else "it would signal the program that runs it"
        if name == "pkill" and word in _EVERYBODY and (at == 0 or words[at - 1] not in ("-d", "-u", "-U", "-g", "-t")):
            return "it would signal every process"
        if (
            name == "pkill"
            and (_is_ours(word) or word in ("-P1", "-g0"))
            and words[at - 1] in ("-P", "-g", "-s", "--parent")
        ):
            return "it would signal the process that runs it"
    return None


def finds_us(words: Sequence[str]) -> bool:
    """Whether a command searches for our processes, so that another command can end them."""
    return name_of(words[0]) in ("pgrep", "pidof", "ps", "lsof") and any(_NAMES.search(word) for word in words[1:])


def ends_others(words: Sequence[str]) -> bool:
    """Whether a command ends the processes that it is given."""
    return name_of(words[0]) in ("kill", "pkill", "killall") and not _only_tries(words)


def _is_ours(word: str) -> bool:
    return f"{HOLE}PPID{HOLE}" in word or word in ("1", "-1")


def _decides(words: Sequence[str]) -> str | None:
    rest = list(words[1:])
    if name_of(words[0]).startswith(("python", "pypy")) and "-m" in rest:
        at = rest.index("-m")
        if rest[at + 1 : at + 2] != ["shellback"]:
            return None
        rest = rest[at + 2 :]
    elif name_of(words[0]) in ("uv", "uvx", "pipx", "poetry", "pdm", "hatch", "rye") and "shellback" in rest:
        rest = rest[rest.index("shellback") + 1 :]
    elif name_of(words[0]) != "shellback":
        return None
    plain = [word for word in rest if not word.startswith("-")]
    if not plain or "--help" in rest or "-h" in rest:
        return None
    verbs = _DECIDES.get(plain[0], frozenset[str]())
    if verbs is None or (len(plain) > 1 and plain[1] in verbs):
        return f"`shellback {' '.join(plain[:2])}` is for people, not for what they have approved"
    return None


def _record(word: str, where: Where) -> str | None:
    if _PROC.search(word.replace(f"{HOLE}PPID{HOLE}", "PARENT")):
        return "it reaches into the process that runs it"
    if _SOCKET.search(word):
        return "it speaks to the program that runs it behind its back"
    state = where.around.state
    if state is None:
        return None
    roots = {os.path.normpath(state), os.path.realpath(state)}
    home = str(where.around.home)  # on the host, a conversation's home may be in the state directory
    own = home if any(home.startswith(f"{root}/") for root in roots) else "\0"
    for value in {word, word.rpartition("=")[2], word.partition(":")[2]}:
        for place in where.places([value]):
            for one in (place, os.path.realpath(place)):
                if f"{one}/".startswith(f"{own}/"):
                    continue
                if any(one == root or one.startswith(root + "/") for root in roots):
                    return "it names the state directory, where records and approvals are kept"
    return None


def _plain(word: str) -> str:
    found = _VARIABLE.search(word)
    return f"${found.group().strip(HOLE)}" if found else word
