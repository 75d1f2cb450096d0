"""Programs with a syntax of their own, or asked only for their version; what rows of programs.toml leave to judge."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from shellback.exec.policy.classify import languages
from shellback.exec.policy.classify.arguments import match
from shellback.exec.policy.classify.model import Asks, Tier
from shellback.exec.policy.classify.options import (
    ALWAYS,
    HOLE,
    Argument,
    Call,
    Check,
    Invocation,
    Judge,
    Kind,
    is_number,
    program,
    words,
)

_PS_LONG: Final = frozenset(
    {"--forest", "--no-headers", "--no-heading", "--headers", "--deselect", "--help", "--version"}
)
_PS_LISTS: Final = re.compile(r"(--(pid|ppid|sid|sort|quick-pid)|-[pqs])=?([\w,+%-]*)")
_PS_FIELDS: Final = words("""
    pid ppid user uid group gid comm args cmd command etime etimes time stat state s %cpu %mem pcpu pmem rss rssize vsz
    vsize nice ni pri priority tty tt tname start start_time lstart bsdstart bsdtime nlwp thcount wchan psr pgid pgrp
    sid sess session ruser ruid rgroup rgid euser euid egroup egid fname ucmd ucomm class cls policy rtprio lwp tid spid
    sz size cputime c f flag flags maj_flt majflt min_flt minflt drs trs cgroup ns
    """)


def _ps(call: Call) -> None:
    """Not BSD `e`, which shows environments; nor what has `-e` read the BSD way, as `-u NAME` and conflicts have."""
    _no_conflict(call.texts)
    waiting = list(reversed(call.texts))
    while waiting:
        text = waiting.pop()
        if text in _PS_LONG or re.fullmatch(r"-[AaedfFljLMNTwyHZ]+|-auxw{0,2}f?|[afjlmnruSsTvwxcghXLH]+", text):
            continue
        if re.fullmatch(r"[0-9]+(,[0-9]+)*", text):
            continue
        listed = _PS_LISTS.fullmatch(text)
        if listed:
            value = listed[3] if "=" in text or listed[3] else _next(waiting, f"ps {text} lacks its value")
            if re.fullmatch(r"[\w,+%-]+", value):
                continue
        fields = re.fullmatch(r"(?:-[eAaf]*o|[axf]*o|--format)=?([\w,=%]*)", text)
        if fields:
            value = fields[1] or _next(waiting, f"ps {text} lacks its value")
            if all(field.partition("=")[0] in _PS_FIELDS for field in re.split(r"[, ]", value)):
                continue
        if text in {"-C", "-u", "-U"} and re.fullmatch(
            r"root|[0-9]+" if text != "-C" else r"[\w.-]+", _next(waiting, f"ps {text} lacks its value")
        ):
            continue
        raise Asks(f"ps {text} is not known to only read")


def _no_conflict(texts: tuple[str, ...]) -> None:
    letters = {letter for text in texts if re.fullmatch(r"-[A-Za-z]+", text) for letter in text[1:]}
    if "e" not in letters:
        return
    formats = "o" in letters or any(text.startswith("--format") for text in texts)
    if "--forest" in texts:
        letters.add("H")
    threads = letters & set("THL")
    old = any(
        re.match("[A-Za-z]", text) and not re.fullmatch(r"-[eAaf]*o|-[CuUpsq]|--[a-z-]+", before)
        for before, text in itertools.pairwise(("", *texts))
    )
    if (formats and letters & set("fFljyHMZ")) or len(threads) > 1 or old:
        raise Asks("ps takes -e for an option that shows environments if other options conflict")


def _ip(call: Call) -> None:
    """Only what shows."""
    texts = [
        text
        for text in call.texts
        if not re.fullmatch(r"-(4|6|s|d|o|j|p|br|brief|c|color|json|pretty|details|stats|N)", text)
    ]
    if not texts or texts[0] not in _IP_OBJECTS or any(text.startswith("-") for text in texts):
        raise Asks(f"ip {' '.join(texts[:1])} is not known to only read")
    if len(texts) > 1 and texts[1] not in {"show", "list", "ls", "s"}:
        raise Asks(f"ip {texts[0]} {texts[1]} is not known to only read", Tier.ADMIN)
    if not all(re.fullmatch(r"dev|up|scope|[\w.:@]+", text) for text in texts[2:]):
        raise Asks("ip is given what is not known")


_IP_OBJECTS: Final = words("a addr address l link r route n neigh neighbor neighbour ru rule m maddr")


_ONLY: Final = {
    "stty": (r"-a|size|-g|--all", "stty would change the terminal", Tier.READ_WRITE),
    "mount": (r"-l", "mount changes what the system has", Tier.ADMIN),
    "hostname": (r"-s|--short|-I|--all-ip-addresses", "hostname would set the name, or ask a name server", Tier.ADMIN),
    "ifconfig": (r"-a|-s|\w+", "ifconfig would change an interface", Tier.ADMIN),
}
"""The one argument that each may have, and what it does with another."""


def _only(call: Call) -> None:
    allowed, otherwise, tier = _ONLY[call.name]
    if call.texts and not (len(call.texts) == 1 and re.fullmatch(allowed, call.texts[0])):
        raise Asks(otherwise, tier)


# Not -o, --fromfile, -R, --info.
_TREE: Final = program(
    "-adfisxpugshDFqNCSnrtcUvJXQAi --noreport --prune --matchdirs --ignore-case --inodes --device --si --du"
    " --dirsfirst --filesfirst --gitignore --metafirst --compress --nolinks",
    text="-PI",
    maybe="--sort --timefmt --charset",
    number="-L --filelimit",
    operands=Kind.LINK,
    here=True,
    walks=ALWAYS,
)


def _tree(call: Call) -> None:
    """What an option takes is never attached: the letters behind it are options too, and `-Po x y` writes y."""
    for argument in call.arguments:
        if re.match(r"-(?!-).*(?:[PI].|L[^0-9])|--(?:sort|timefmt|charset)\Z", argument.text, re.DOTALL):
            raise Asks(f"tree may take what is behind {argument.text} for an option")
    match(_TREE, call)


_TAR_ALONE: Final = words(
    "--list --verbose --gzip --bzip2 --xz --zstd --lzip --auto-compress --wildcards --numeric-owner --utc --full-time"
)
_TAR_LETTERS: Final = re.compile(r"-([tvzjJa]*)(?:f(.*))?", re.DOTALL)
_TAR_FILE: Final = re.compile(r"--file(?:=(.*))?", re.DOTALL)


def _tar(call: Call) -> None:
    """Only `t`, from one file: not through a program of the command's choice, nor from another machine."""
    waiting = list(reversed(call.texts))
    if waiting and not waiting[-1].startswith("-"):
        waiting[-1] = f"-{waiting[-1]}"
        if "f" in waiting[-1][:-1]:
            raise Asks("tar's f is not last")
    listing = False
    while waiting and (text := waiting.pop()) != "--":
        listing |= _tar_word(call, text, waiting)
    if not listing:
        raise Asks("tar without t packs or unpacks")


def _tar_word(call: Call, text: str, waiting: list[str]) -> bool:
    """Go over an option or member; whether it says that the archive is listed."""
    if text in _TAR_ALONE:
        return text == "--list"
    if letters := _TAR_LETTERS.fullmatch(text):
        if letters[2] is not None:
            _tar_archive(call, letters[2] or _next(waiting, "tar -f lacks its file"))
        return "t" in letters[1]
    if file := _TAR_FILE.fullmatch(text):
        _tar_archive(call, file[1] if file[1] is not None else _next(waiting, "tar -f lacks its file"))
    elif text.startswith("-") and not text.startswith("--exclude="):
        raise Asks(f"tar {text} is not known to only read")
    return False


def _tar_archive(call: Call, file: str) -> None:
    if ":" in file or (file.startswith("-") and file != "-"):
        raise Asks("tar would fetch an archive from another machine, or takes an option for its name")
    call.files.read(file)


def _next(waiting: list[str], reason: str) -> str:
    if not waiting:
        raise Asks(reason)
    return waiting.pop()


def _filter(found: Invocation) -> None:
    languages.jq(found.operands[0] if found.operands else ".")


_JQ_NAMED: Final = frozenset({"--arg", "--argjson"})
# Not -f, -L, --slurpfile, --rawfile, --args, --jsonargs.
_JQ: Final = program(
    "-rjacnsSeRCMb --raw-output --join-output --ascii-output --compact-output --null-input --slurp --sort-keys"
    " --exit-status"
    " --raw-input --color-output --monochrome-output --tab --stream --stream-errors --seq --unbuffered --raw-output0",
    number="--indent",
    first=Kind.TEXT,
    check=_filter,
)


def _jq(call: Call) -> None:
    """`--arg` is followed by a name and a value."""
    around = call.files.around
    if not around.sandboxed and os.path.lexists(around.home / ".jq"):
        raise Asks("jq takes definitions from .jq in HOME")
    texts = [argument.text for argument in call.arguments]
    if "--" in texts and not _JQ_NAMED.isdisjoint(texts):
        raise Asks("jq takes --arg behind -- for a file")
    kept: list[Argument] = []
    waiting = list(reversed(call.arguments))
    while waiting:
        kept.append(waiting.pop())
        if kept[-1].text in _JQ_NAMED:
            del kept[-1]
            named = [waiting.pop() for _ in waiting[-2:]]
            if len(named) < 2 or any(argument.matched or argument.text.startswith("-") for argument in named):
                raise Asks("jq --arg lacks its name or value")
    match(_JQ, replace(call, arguments=tuple(kept)))


_XXD_ALONE: Final = re.compile(
    r"-(a|autoskip|b|bits|C|capitalize|d|e|E|EBCDIC|i|include|p|ps|plain|postscript|u|upper)"
)
_XXD_NUMBER: Final = re.compile(r"-(c|cols|g|groupsize|l|len|o|offset|s|seek)")
_XXD_ATTACHED: Final = re.compile(r"-[cglos][-+]?[0-9]+")


def _xxd(call: Call) -> None:
    """One file at most: a second one is written, and so is what `-r` makes."""
    waiting = list(reversed(call.texts))
    while waiting and waiting[-1].startswith("-") and waiting[-1] != "-":
        option = waiting.pop()
        if _XXD_NUMBER.fullmatch(option) and waiting and re.fullmatch(r"[-+]?(0x)?[0-9a-fA-F]+", waiting[-1]):
            waiting.pop()
        elif not (_XXD_ALONE.fullmatch(option) or _XXD_ATTACHED.fullmatch(option)):
            raise Asks(f"xxd {option} is not known to only read")
    if len(waiting) > 1:
        raise Asks("xxd writes its second file")
    for operand in waiting:
        call.files.read(operand)


# Not those that take a version, plugins or options from the current directory first (cargo, rustc, go, dotnet, yarn,
# pnpm, bundle, gradle, mvn, pytest, tox, poetry, ansible, valgrind), nor those that write even then (java).
_ASKED: Final[Mapping[str, frozenset[str]]] = {
    "--version": words("""
        python python3 python2 pip pip3 node nodejs npm gcc g++ cc c++ clang clang++ cpp make gmake cmake ctest ninja
        meson ld as gdb strace perl ruby php lua bash dash zsh fish curl wget rsync docker podman vim nvim nano emacs
        less more man sqlite3 psql mysql redis-cli redis-server pandoc uv ruff deno autoconf automake pkg-config
        gfortran zip sudo busybox systemctl bwrap patch flock nohup tee cp mv rm mkdir touch chmod chown ln install dd
        """),
    "-V": words("python python3 python2 pip pip3 ssh tmux"),
    "-VV": words("python python3"),
    "-v": words("node nodejs npm perl ruby php lua nginx"),
    "version": words("openssl"),
    "-version": words("ffmpeg"),
    "--help": words("python python3 pip pip3 node curl wget"),
}
_READ_HOME: Final = words("curl wget sqlite3 gdb npm")
"""They read a start-up file in HOME before they say anything; on the host that is the workspace."""


def _version(call: Call) -> None:
    if call.name in _READ_HOME and not call.files.around.sandboxed:
        raise Asks(f"{call.name} takes options from a file in HOME first")
    if call.name not in _ASKED.get(" ".join(call.texts), ()):
        raise Asks(f"{call.name} runs programs or changes things")


VERSIONS: Final[Mapping[str, Judge]] = {name: _version for listed in _ASKED.values() for name in sorted(listed)}


SYNTAXES: Final[Mapping[str, Judge]] = {
    "ps": _ps,
    "ip": _ip,
    **dict.fromkeys(_ONLY, _only),
    "tree": _tree,
    "tar": _tar,
    "jq": _jq,
    "xxd": _xxd,
}


def _all(form: str, reason: str, *options: str, tier: Tier = Tier.READ_WRITE) -> Check:
    """Every operand, or value of these options, has this form."""

    def check(found: Invocation) -> None:
        if not all(
            re.fullmatch(form, one, re.DOTALL) for one in (found.values(*options) if options else found.operands)
        ):
            raise Asks(reason.format(found.name), tier)

    return check


def diff(found: Invocation) -> None:
    """Directories are compared with all that is in them, through symlinks."""
    for operand in found.operands:
        if HOLE in operand:
            raise Asks("directories that are compared are known only when it runs")
        if found.files.is_directory(operand):
            found.files.descend(operand, follows=True, reads=True)


def ls(found: Invocation) -> None:
    """Without `-l` or `-d`, `ls` lists what a symlink leads to."""
    long = found.given("-l", "-g", "-n", "-o") and not found.given("-C", "-x", "-m", "--format")
    if not long and not found.given("-d", "--directory"):
        found.each(found.files.look)


def stat(found: Invocation) -> None:
    if found.given("-L", "--dereference", "-f", "--file-system"):
        found.each(found.files.look)


def sed(found: Invocation) -> None:
    scripts = found.values("-e", "--expression") or list(found.operands[:1])
    if not scripts:
        raise Asks("sed lacks its script")
    languages.sed("\n".join(scripts))


def awk(found: Invocation) -> None:
    if not found.operands:
        raise Asks("awk lacks its program")
    if any(operand.startswith("-") and operand != "-" for operand in found.operands):
        raise Asks("awk may take what begins with a dash for an option")
    languages.awk(found.operands[0])


def unzip(found: Invocation) -> None:
    if not found.given("-l", "-v", "-t", "-p", "-c", "-Z", "-z"):
        raise Asks("unzip would unpack")
    if any(operand.startswith("-") for operand in found.operands):
        raise Asks("unzip takes options back with --")


def to_output(found: Invocation) -> None:
    """To the output, or only tested or listed; the last of `-t` and `-d` counts for some of these programs."""
    stdout = found.given("-c", "--stdout", "--to-stdout")
    looks = found.given("-l", "-t", "--list", "--test") and not found.given("-d", "--decompress", "--uncompress")
    if not stdout and not looks and (found.operands or not found.piped):
        raise Asks(f"{found.name} would replace the file")


_SS_WORDS: Final = words("""
    state exclude connected synchronized bucket big all established syn-sent syn-recv fin-wait-1 fin-wait-2 time-wait
    closed close-wait last-ack listening listen closing sport dport src dst and or not ( ) ! & | = == != eq neq gt lt ge
    le > < >= <=
    """)
_SS_ADDRESS: Final = re.compile(
    r"[0-9.]+(/[0-9]+)?(:[a-z0-9*]+)?|:[a-z0-9*]+|\[[0-9a-fA-F:]+\](/[0-9]+)?(:[a-z0-9*]+)?"
)


def ss(found: Invocation) -> None:
    for word in " ".join(found.operands).split():
        if word not in _SS_WORDS and not _SS_ADDRESS.fullmatch(word):
            raise Asks(f"ss may ask name servers for {word}")


def tput(found: Invocation) -> None:
    if not all(re.fullmatch(r"[\w.+-]+", name) for name in found.values("-T")):
        raise Asks("tput takes a terminal's description from a file")
    if not found.operands or {"init", "reset"} & set(found.operands):
        raise Asks("tput init and tput reset run a program of the terminal's description")


def netstat(found: Invocation) -> None:
    if not found.given("-n", "--numeric"):
        raise Asks("netstat without -n asks name servers")


def counted(found: Invocation) -> None:
    if len(found.operands) == 1 or (found.operands and not all(is_number(operand) for operand in found.operands)):
        raise Asks(f"{found.name} with a delay and no count never ends")


CHECKS: Final[Mapping[str, Check]] = {
    # Programs of binutils take `@file` for options that are in the file.
    "no_response_file": _all(r"(?!@).*", "{} takes options from a file"),
    "count_and_range": _all(r"\d+-\d+", "a range is two numbers", "-i", "--input-range"),
    "iconv": _all(
        r"[\w.:+-]+(//[A-Z]*)*", "iconv takes a character set from a file", "-f", "-t", "--from-code", "--to-code"
    ),
    "seq": _all(r"[-+]?[0-9.]+", "seq may never end"),
    "zgrep": _all(r"(?!-).*", "zgrep is a script, and takes what begins with a dash for an option"),
    "date": _all(r"\+.*", "date would set the clock", tier=Tier.ADMIN),
    # Dots and slashes lead down in /proc/sys, and two of them up.
    "sysctl": _all(
        r"[\w-]+([./][\w-]+)*[./]?", "sysctl would change the kernel, or read another file", tier=Tier.ADMIN
    ),
    **{check.__name__: check for check in (diff, ls, stat, sed, awk, unzip, to_output, ss, tput, netstat, counted)},
}
