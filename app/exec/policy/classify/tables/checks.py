"""What the rows of programs.toml leave to judge, once a program's arguments are taken apart."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from shellback.exec.policy.classify import languages
from shellback.exec.policy.classify.model import Asks, Tier
from shellback.exec.policy.classify.options import HOLE, Check, Invocation, is_number, words


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
