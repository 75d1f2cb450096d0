"""Programs that turn files, or their input, into text on their output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from shellback.exec.policy.classify.model import Asks
from shellback.exec.policy.classify.options import HOLE, Invocation, Kind, Program, program

_DIGEST: Final = program("-btz --binary --text --tag --zero")


def no_response_file(found: Invocation) -> None:
    """Programs of binutils take `@file` for options that are in the file."""
    if any(operand.startswith("@") for operand in found.operands):
        raise Asks(f"{found.name} takes options from a file")


def _diff(found: Invocation) -> None:
    """Directories are compared with all that is in them, through symlinks."""
    for operand in found.operands:
        if HOLE in operand:
            raise Asks("directories that are compared are known only when it runs")
        if found.files.is_directory(operand):
            found.files.descend(operand, follows=True, reads=True)


def _count_and_range(found: Invocation) -> None:
    for value in found.values("-i", "--input-range"):
        first, _, last = value.partition("-")
        if not (first.isdecimal() and last.isdecimal()):
            raise Asks("a range is two numbers")


def _iconv(found: Invocation) -> None:
    for value in found.values("-f", "-t", "--from-code", "--to-code"):
        if not re.fullmatch(r"[\w.:+-]+(//[A-Z]*)*", value):
            raise Asks("iconv takes a character set from a file")


def _seq(found: Invocation) -> None:
    if not all(re.fullmatch(r"[-+]?[0-9.]+", operand) for operand in found.operands):
        raise Asks("seq may never end")


TEXT: Final[Mapping[str, Program]] = {
    "cat": program(
        "-AbeEnstTuv --show-all --number-nonblank --show-ends --number --squeeze-blank --show-tabs --show-nonprinting"
    ),
    "tac": program("-br --before --regex", text="-s --separator"),
    "rev": program(""),
    "nl": program(
        "-p --no-renumber",
        text="-bdfhns --body-numbering --section-delimiter --footer-numbering --header-numbering --number-format"
        " --number-separator",
        number="-ilvw --line-increment --join-blank-lines --starting-line-number --number-width",
    ),
    "head": program("-qvz --quiet --silent --verbose --zero-terminated", number="-nc --lines --bytes", digits=True),
    # Not -f: it never ends.
    "tail": program("-qvz --quiet --silent --verbose --zero-terminated", number="-nc --lines --bytes", digits=True),
    # Not --files0-from: it takes names from a file.
    "wc": program("-cmlLw --bytes --chars --lines --max-line-length --words", text="--total"),
    "cut": program(
        "-nsz --complement --only-delimited --zero-terminated",
        text="-bcdf --bytes --characters --delimiter --fields --output-delimiter",
    ),
    "tr": program(
        "-cCdst --complement --delete --squeeze-repeats --truncate-set1", operands=Kind.TEXT, least=1, most=2
    ),
    "paste": program("-sz --serial --zero-terminated", text="-d --delimiters"),
    "join": program(
        "-iz --ignore-case --check-order --nocheck-order --header --zero-terminated",
        text="-eojt12av",
        most=2,
    ),
    "comm": program("-123z --check-order --nocheck-order --total --zero-terminated", text="--output-delimiter", most=2),
    "cmp": program("-bls --print-bytes --verbose --quiet --silent", number="-in --ignore-initial --bytes", most=4),
    "diff": program(
        "-abBdeEinNpqrstTuwycZP --text --ignore-space-change --ignore-blank-lines --minimal --ed"
        " --ignore-tab-expansion"
        " --ignore-case --new-file --unidirectional-new-file --show-c-function --brief --recursive"
        " --report-identical-files --expand-tabs --initial-tab --ignore-all-space --side-by-side"
        " --ignore-trailing-space --suppress-common-lines --suppress-blank-empty --left-column --normal --rcs"
        " --strip-trailing-cr --speed-large-files --no-dereference --ignore-file-name-case --no-ignore-file-name-case",
        text="-IFDxL --ignore-matching-lines --show-function-line --ifdef --exclude --label --line-format"
        " --old-line-format --new-line-format --unchanged-line-format --old-group-format --new-group-format"
        " --palette --changed-group-format --unchanged-group-format --GTYPE-group-format --LTYPE-line-format",
        number="-UCW --width --tabsize --horizon-lines",
        maybe="--unified --context --color",
        digits=True,
        most=2,
        check=_diff,
    ),
    "diff3": program(
        "-AeExX3imaT --show-all --ed --show-overlap --text --merge --easy-only --initial-tab --strip-trailing-cr",
        text="-L --label",
        most=3,
    ),
    # Not -o, -T, --compress-program, --files0-from, --random-source.
    "sort": program(
        "-bdfghiMnRrVcCmsuz --ignore-leading-blanks --dictionary-order --ignore-case --general-numeric-sort"
        " --human-numeric-sort --ignore-nonprinting --month-sort --numeric-sort --random-sort --reverse --version-sort"
        " --merge --stable --unique --zero-terminated --debug",
        text="-kt --key --field-separator --sort",
        number="-S --buffer-size --parallel --batch-size",
        maybe="--check",
    ),
    # The second operand is written.
    "uniq": program(
        "-cdDiuz --count --repeated --ignore-case --unique --zero-terminated",
        number="-fsw --skip-fields --skip-chars --check-chars",
        maybe="--all-repeated --group",
        most=1,
    ),
    "fold": program("-bs --bytes --spaces", number="-w --width", digits=True),
    "fmt": program(
        "-cstu --crown-margin --split-only --tagged-paragraph --uniform-spacing",
        text="-p --prefix",
        number="-wg --width --goal",
        digits=True,
    ),
    "pr": program(
        "-acdfFJmrtTv --across --show-control-chars --double-space --form-feed --join-lines --merge --no-file-warnings"
        " --omit-header --omit-pagination --show-nonprinting",
        text="-hD --header --date-format --pages",
        number="-loWwN --length --indent --page-width --width --first-line-number --columns",
        maybe="-neiSs --number-lines --expand-tabs --output-tabs --separator --sep-string",
        digits=True,
    ),
    "column": program(
        "-txeJLd --table --fillrows --json --keep-empty-lines --table-noheadings --table-empty-lines",
        text="-sorNHERTOWCi --separator --output-separator --table-columns --table-hide --table-right"
        " --table-noextreme --table-truncate --table-order --table-wrap --tree --tree-id --tree-parent",
        number="-cl --output-width --table-columns-limit",
    ),
    "expand": program("-i --initial", text="-t --tabs", digits=True),
    "unexpand": program("-a --all --first-only", text="-t --tabs", digits=True),
    "od": program(
        "-abcdfiloxsvh --output-duplicates --traditional",
        text="-AjNtS --address-radix --skip-bytes --read-bytes --format --endian",
        maybe="-w --width --strings",
    ),
    "hexdump": program(
        "-bcCdovxX --one-byte-octal --one-byte-hex --one-byte-char --canonical --two-bytes-decimal --two-bytes-octal"
        " --no-squeezing --two-bytes-hex",
        text="-e",
        number="-ns --length --skip",
        maybe="-L --color",
    ),
    "hd": program("-bcCdovx", text="-e", number="-ns"),
    "strings": program(
        "-adfwo --all --data --print-file-name --include-all-whitespace",
        text="-tesUT --radix --encoding --output-separator --unicode",
        number="-n --bytes",
        digits=True,
        check=no_response_file,
    ),
    "base64": program("-di --decode --ignore-garbage", number="-w --wrap", most=1),
    "base32": program("-di --decode --ignore-garbage", number="-w --wrap", most=1),
    "basenc": program(
        "-di --decode --ignore-garbage --base64 --base64url --base32 --base32hex --base16 --base2msbf --base2lsbf"
        " --z85",
        number="-w --wrap",
        most=1,
    ),
    # Not -c: it takes names from a file.
    **dict.fromkeys(("md5sum", "sha1sum", "sha224sum", "sha256sum", "sha384sum", "sha512sum"), _DIGEST),
    "b2sum": program("-btz --binary --text --tag --zero", number="-l --length"),
    "cksum": program("-z --untagged --tag --zero --raw --base64", text="-a --algorithm", number="-l --length"),
    "sum": program("-rs --sysv"),
    "crc32": program(""),
    # Not -o.
    "iconv": program("-cls --list --silent --verbose", text="-ft --from-code --to-code", check=_iconv),
    "numfmt": program(
        "-z --debug --grouping --zero-terminated",
        text="-d --delimiter --field --format --from --invalid --round --suffix --to",
        number="--from-unit --padding --to-unit",
        maybe="--header",
        operands=Kind.TEXT,
    ),
    # Not -o, --random-source; nor -r, which never ends.
    "shuf": program(
        "-ez --echo --zero-terminated",
        number="-n --head-count",
        text="-i --input-range",
        check=_count_and_range,
    ),
    "tsort": program("", most=1),
    "look": program("-adfb", text="-t", first=Kind.TEXT),
    "colrm": program("", operands=Kind.NUMBER),
    "seq": program(
        "-w --equal-width", text="-fs --format --separator", operands=Kind.TEXT, permutes=False, digits=True, check=_seq
    ),
    "factor": program("", operands=Kind.TEXT),
    "expr": program("", operands=Kind.TEXT, permutes=False, digits=True),
    "basename": program("-az --multiple --zero", text="-s --suffix", operands=Kind.TEXT),
    "dirname": program("-z --zero", operands=Kind.TEXT),
    "bc": program("-lqsw --mathlib --quiet --standard --warn", most=0),
}
