"""Programs that list archives, and unpack to their output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from shellback.exec.policy.classify.model import Asks
from shellback.exec.policy.classify.options import Call, Invocation, Judge, Program, program, words

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
            _tar_archive(call, letters[2] or _next(waiting))
        return "t" in letters[1]
    if file := _TAR_FILE.fullmatch(text):
        _tar_archive(call, file[1] if file[1] is not None else _next(waiting))
    elif text.startswith("-") and not text.startswith("--exclude="):
        raise Asks(f"tar {text} is not known to only read")
    return False


def _tar_archive(call: Call, file: str) -> None:
    if ":" in file or (file.startswith("-") and file != "-"):
        raise Asks("tar would fetch an archive from another machine, or takes an option for its name")
    call.files.read(file)


def _next(waiting: list[str]) -> str:
    if not waiting:
        raise Asks("tar -f lacks its file")
    return waiting.pop()


def _unzip(found: Invocation) -> None:
    if not found.given("-l", "-v", "-t", "-p", "-c", "-Z", "-z"):
        raise Asks("unzip would unpack")
    if any(operand.startswith("-") for operand in found.operands):
        raise Asks("unzip takes options back with --")


def _to_output(found: Invocation) -> None:
    """To the output, or only tested or listed; the last of `-t` and `-d` counts for some of these programs."""
    stdout = found.given("-c", "--stdout", "--to-stdout")
    looks = found.given("-l", "-t", "--list", "--test") and not found.given("-d", "--decompress", "--uncompress")
    if not stdout and not looks and (found.operands or not found.piped):
        raise Asks(f"{found.name} would replace the file")


_CAT: Final = program("-fqv --force --quiet --verbose")

ARCHIVES: Final[Mapping[str, Program | Judge]] = {
    "tar": _tar,
    # Members after the archive are patterns, and judged as files: too much, never too little.
    "unzip": program("-lvtpczqZ12smhaCUb", check=_unzip),
    "zipinfo": program("-12smlvhtTzCZ"),
    **dict.fromkeys(("zcat", "bzcat", "xzcat", "zstdcat", "lzcat", "gzcat"), _CAT),
    **dict.fromkeys(
        ("gzip", "gunzip", "xz", "unxz", "zstd", "unzstd", "bzip2", "bunzip2", "lzma", "unlzma"),
        program(
            "-cdltqv --stdout --to-stdout --decompress --uncompress --list --test --quiet --verbose", check=_to_output
        ),
    ),
}
