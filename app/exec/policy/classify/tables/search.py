"""Programs that look for text or for files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shellback.exec.policy.classify.model import Asks
from shellback.exec.policy.classify.options import ALWAYS, Invocation, Kind, Program, program

# Not --devices, --directories=read of special files: operands are plain files by then.
_GREP: Final = program(
    "-EFGPiywxzsvnbHhqaoILlcTrRUZu --extended-regexp --fixed-strings --basic-regexp --perl-regexp --ignore-case"
    " --no-ignore-case --word-regexp --line-regexp --null-data --no-messages --invert-match --byte-offset"
    " --line-number"
    " --line-buffered --with-filename --no-filename --only-matching --quiet --silent --text --recursive"
    " --dereference-recursive --files-without-match --files-with-matches --count --initial-tab --null --binary",
    text="-e --regexp --label --binary-files --include --exclude --exclude-dir --directories -dD --devices"
    " --group-separator",
    number="-mABC --max-count --after-context --before-context --context",
    read="-f --file --exclude-from",
    maybe="--color --colour",
    digits=True,
    first=Kind.TEXT,
    first_unless="-ef --regexp --file",
    here=True,
    walks="-rR --recursive --dereference-recursive --directories -d",
    follows="-R --dereference-recursive",
)


# Not --pre, --pre-glob, --hostname-bin, -z, --search-zip, --ignore-file, --generate.
_RG: Final = program(
    "-0acFhHiIlLnNopPqsSUuvVwx. --files --no-config --type-list --text --ignore-case --case-sensitive --smart-case"
    " --count"
    " --count-matches --column --no-column --crlf --debug --fixed-strings --files-with-matches --files-without-match"
    " --follow"
    " --no-follow --heading --no-heading --hidden --no-hidden --invert-match --json --line-buffered --line-number"
    " --no-line-number --line-regexp --max-columns-preview --multiline --multiline-dotall --no-ignore --no-ignore-dot"
    " --no-ignore-exclude --no-ignore-files --no-ignore-global --no-ignore-parent --no-ignore-vcs --no-messages"
    " --no-mmap"
    " --mmap --no-require-git --no-unicode --null --null-data --one-file-system --only-matching --passthru"
    " --passthrough"
    " --pcre2 --pretty --quiet --stats --no-stats --trim --unrestricted --vimgrep --with-filename --no-filename"
    " --word-regexp --byte-offset --binary --no-binary --include-zero --glob-case-insensitive --block-buffered -b",
    text="-egtTErjM --regexp --glob --iglob --type --type-not --type-add --type-clear --encoding --engine --replace"
    " --color --colors --sort --sortr --context-separator --field-context-separator --field-match-separator"
    " --path-separator --hyperlink-format",
    number="-ABCmd --after-context --before-context --context --max-count --max-depth --maxdepth --max-columns"
    " --max-filesize --threads --dfa-size-limit --regex-size-limit",
    read="-f --file",
    first=Kind.TEXT,
    first_unless="-ef --regexp --file --files --type-list",
    here=True,
    walks=ALWAYS,
    follows="-L --follow",
    hidden="-u. --unrestricted --hidden",
)
# Not -x, -X, -o, --ignore-file, -l.
_FD: Final = program(
    "-0aHIusigFpLq1 --hidden --no-ignore --no-ignore-vcs --no-ignore-parent --unrestricted --case-sensitive"
    " --ignore-case"
    " --glob --regex --fixed-strings --absolute-path --follow --full-path --print0 --prune --quiet --show-errors"
    " --one-file-system --has-results --relative-path --strip-cwd-prefix --max-one-result",
    text="-etESco --owner --extension --type --exclude --size --color --changed-within --changed-before --and"
    " --format --path-separator",
    number="-dj --max-depth --min-depth --exact-depth --max-results --threads",
    first=Kind.TEXT,
    operands=Kind.LINK,
    here=True,
    walks=ALWAYS,
    follows="-L --follow",
)


def _zgrep(found: Invocation) -> None:
    if any(operand.startswith("-") for operand in found.operands):
        raise Asks("zgrep is a script, and takes what begins with a dash for an option")


SEARCH: Final[Mapping[str, Program]] = {
    "grep": _GREP,
    "egrep": _GREP,
    "fgrep": _GREP,
    "rg": _RG,
    "fd": _FD,
    "fdfind": _FD,
    "zgrep": program("-EFGicvnlLhHowqs", number="-mABC", first=Kind.TEXT, check=_zgrep),
}
