"""Programs that list directories and tell facts of files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from shellback.exec.policy.classify.arguments import match
from shellback.exec.policy.classify.model import Asks
from shellback.exec.policy.classify.options import ALWAYS, Call, Invocation, Judge, Kind, Program, program
from shellback.exec.policy.classify.tables.text import no_response_file


def _ls(found: Invocation) -> None:
    """Without `-l` or `-d`, `ls` lists what a symlink leads to."""
    long = found.given("-l", "-g", "-n", "-o") and not found.given("-C", "-x", "-m", "--format")
    if not long and not found.given("-d", "--directory"):
        found.each(found.files.look)


def _stat(found: Invocation) -> None:
    if found.given("-L", "--dereference", "-f", "--file-system"):
        found.each(found.files.look)


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


FILES: Final[Mapping[str, Program | Judge]] = {
    "ls": program(
        "-aAbBcCdfFgGhiklmnNopqQrRsStuUvxXZ1 --all --almost-all --author --escape --ignore-backups --directory"
        " --group-directories-first --no-group --human-readable --si --inode --kibibytes --numeric-uid-gid --literal"
        " --hide-control-chars --show-control-chars --quote-name --reverse --recursive --size --context --zero"
        " --file-type",
        text="-I --ignore --hide --block-size --format --indicator-style --quoting-style --sort --time --time-style",
        number="-Tw --tabsize --width",
        maybe="--color --colour --classify --hyperlink",
        operands=Kind.LINK,
        here=True,
        walks="-R --recursive",
        check=_ls,
    ),
    **dict.fromkeys(
        ("dir", "vdir"), program("-aAlhrtSR1 --all --almost-all --color", operands=Kind.LOOK, here=True, walks="-R")
    ),
    "tree": _tree,
    "stat": program(
        "-Lft --dereference --file-system --terse",
        text="-c --format --printf --cached",
        operands=Kind.LINK,
        check=_stat,
    ),
    # Not -f, -m, -C, -z, -Z, -L, -s, -S: names and rules from files, programs that unpack, special files.
    "file": program(
        "-bhikNnrvE0 --brief --mime --mime-type --mime-encoding --no-dereference --keep-going --no-pad --raw --print0"
        " --extension --apple",
        text="-F --separator",
        operands=Kind.LINK,
    ),
    # Not -D, -H, -L, --files0-from, -X.
    "du": program(
        "-0abchklmPsSx --null --all --apparent-size --bytes --total --human-readable --si --no-dereference"
        " --separate-dirs --summarize --one-file-system --inodes --count-links",
        text="-B --block-size --exclude --time-style",
        number="-dt --max-depth --threshold",
        maybe="--time",
        operands=Kind.LINK,
        here=True,
        walks=ALWAYS,
    ),
    "df": program(
        "-ahHiklmPTv --all --human-readable --si --inodes --local --portability --print-type --total --no-sync",
        text="-Btx --block-size --type --exclude-type",
        maybe="--output",
        operands=Kind.LOOK,
    ),
    "readlink": program(
        "-efmnqsvz --canonicalize --canonicalize-existing --canonicalize-missing --no-newline --quiet --silent"
        " --verbose"
        " --zero",
        operands=Kind.LINK,
    ),
    "realpath": program(
        "-eLmPqsz --canonicalize-existing --canonicalize-missing --logical --physical --quiet --strip --no-symlinks"
        " --zero",
        text="--relative-to --relative-base",
        operands=Kind.LINK,
    ),
    "pathchk": program("-pP --portability", operands=Kind.TEXT),
    "namei": program("-xmolvn --mountpoints --modes --owners --long --vertical", operands=Kind.LOOK),
    "lsattr": program("-adlRpv", operands=Kind.LINK, here=True),
    "getfacl": program("-acdepstnR --absolute-names --omit-header --numeric", operands=Kind.LOOK),
    "size": program("-ABdGotx --common --totals", number="--radix", text="--format", check=no_response_file),
    "readelf": program(
        "-aehlSgtsndurVAIW --all --file-header --program-headers --segments --section-headers --sections --headers"
        " --syms"
        " --symbols --dyn-syms --notes --relocs --dynamic --version-info --wide",
        check=no_response_file,
    ),
    "nm": program(
        "-AaCDgnoPprSsuv --debug-syms --demangle --dynamic --extern-only --numeric-sort --print-file-name --no-sort"
        " --print-size --reverse-sort --undefined-only --defined-only --size-sort",
        check=no_response_file,
    ),
}
