"""git's subcommands that only ask, with the options of each that neither write nor run a program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from shellback.exec.policy.classify.model import Asks
from shellback.exec.policy.classify.options import Invocation, Kind, Program, program, words

# Not --output, --ext-diff, --textconv, --no-index, -O.
_DIFF: Final = (
    "-puszRabwBCMDW --patch --no-patch --raw --patch-with-raw --patch-with-stat --summary --numstat --shortstat"
    " --name-only"
    " --name-status --check --full-index --binary --no-renames --find-copies-harder --exit-code --quiet --text"
    " --ignore-space-at-eol --ignore-space-change --ignore-all-space --ignore-blank-lines --ignore-cr-at-eol"
    " --function-context --minimal --patience --histogram --indent-heuristic --no-indent-heuristic --no-ext-diff"
    " --no-textconv"
    " --no-color --no-prefix --default-prefix --pickaxe-all --pickaxe-regex --compact-summary --cumulative"
    " --no-relative"
    " --irreversible-delete --ita-invisible-in-index --no-color-moved"
)
_DIFF_TEXT: Final = (
    "-SGl --diff-filter --src-prefix --dst-prefix --line-prefix --output-indicator-new --inter-hunk-context"
    " --word-diff-regex --color-moved-ws --ws-error-highlight --diff-algorithm --diff-merges --stat-width"
    " --stat-name-width --stat-count --stat-graph-width --ignore-matching-lines --skip-to --rotate-to --find-object"
)
_DIFF_MAYBE: Final = (
    "-UXBMC --unified --stat --dirstat --color --color-words --word-diff --color-moved --find-renames --find-copies"
    " --break-rewrites --abbrev --relative --submodule --ignore-submodules --dirstat-by-file"
)
_DIFF_FLAGS: Final = _DIFF.replace("-puszRabwBCMDW", "-puszRabwDW")

# Not --show-signature, --stdin.
_REVISIONS: Final = (
    "-cmgEFPit --oneline --decorate --no-decorate --source --use-mailmap --mailmap --no-mailmap --full-diff --follow"
    " --graph"
    " --no-graph --all --reflog --merges --no-merges --first-parent --reverse --topo-order --date-order"
    " --author-date-order"
    " --walk-reflogs --all-match --invert-grep --regexp-ignore-case --extended-regexp --basic-regexp --fixed-strings"
    " --perl-regexp --cherry-pick --cherry-mark --cherry --left-right --left-only --right-only --boundary"
    " --simplify-merges"
    " --simplify-by-decoration --full-history --dense --sparse --show-pulls --ancestry-path --remove-empty"
    " --relative-date"
    " --parents --children --left-right --abbrev-commit --no-abbrev-commit --no-abbrev --cc --combined-all-paths"
    " --no-notes --log-size --not --clear-decorations --no-expand-tabs --no-walk --do-walk --in-commit-order --bisect"
)
_REVISIONS_TEXT: Final = (
    "-nL --max-count --skip --since --after --until --before --author --committer --grep --grep-reflog --min-age"
    " --max-age"
    " --format --date --decorate-refs --decorate-refs-exclude --encoding --exclude --glob"
)
_REVISIONS_MAYBE: Final = (
    "--pretty --branches --tags --remotes --decorate --notes --min-parents --max-parents --expand-tabs"
)


def _formats(found: Invocation) -> None:
    """`%G` has signatures checked, which runs a program; a merge that is made again is written while it is shown."""
    if any(value.startswith("r") for value in found.values("--diff-merges")):
        raise Asks("the merge is made again, which writes objects")
    for value in found.values("--format", "--pretty", "--group"):
        if re.search(r"%[-+ ]?G|signature", value):
            raise Asks("the format has signatures checked by a program")
        if re.search(r"%\(\*?raw", value):
            raise Asks("the format prints what an object holds")


def _log(flags: str = "", text: str = "", maybe: str = "") -> Program:
    return program(
        f"{_DIFF_FLAGS} {_REVISIONS} {flags}",
        text=f"{_DIFF_TEXT} {_REVISIONS_TEXT} {text}",
        maybe=f"{_DIFF_MAYBE} {_REVISIONS_MAYBE} {maybe}",
        digits=True,
        operands=Kind.TEXT,
        check=_formats,
    )


_LOG: Final = _log()
_DIFFS: Final = program(
    f"{_DIFF_FLAGS} --cached --staged --merge-base --base --ours --theirs -0123 -c --cc -m -t -r --root --stat",
    text=_DIFF_TEXT,
    maybe=_DIFF_MAYBE,
    operands=Kind.TEXT,
)
_FILTERING: Final = "--contains --no-contains --merged --no-merged --points-at"


def _branch(found: Invocation) -> None:
    """A name without `--list` or a condition makes a branch."""
    if found.operands and not found.given("-l", "--list", *_FILTERING.split()):
        raise Asks(f"git {found.name} with a name makes one")
    _formats(found)


def _refs(flags: str, maybe: str = "") -> Program:
    return program(
        f"-al --list --all --ignore-case -i --no-color --omit-empty --no-column {flags}",
        text=f"--sort --format {_FILTERING}",
        maybe=f"--color --column --abbrev {maybe}",
        last=_FILTERING,
        operands=Kind.TEXT,
        check=_branch,
    )


def _first(*allowed: str) -> Program:
    """Only with one of these words first, and options that show."""

    def check(found: Invocation) -> None:
        if found.operands[:1] not in {(word,) for word in allowed} | ({()} if "" in allowed else set()):
            raise Asks(f"git {found.name} {' '.join(found.operands[:1])} is not known to only read")
        _formats(found)

    return program(
        f"{_DIFF_FLAGS} {_REVISIONS} -v --verbose --porcelain --include-untracked --only-untracked --push --all",
        text=f"{_DIFF_TEXT} {_REVISIONS_TEXT}",
        maybe=f"{_DIFF_MAYBE} {_REVISIONS_MAYBE}",
        digits=True,
        operands=Kind.TEXT,
        check=check,
    )


def _remote(found: Invocation) -> None:
    if found.operands and (found.operands[0] != "get-url" or found.given("-v", "--verbose")):
        raise Asks(f"git remote {found.operands[0]} changes remotes, or asks them")


def _symbolic_ref(found: Invocation) -> None:
    if len(found.operands) != 1:
        raise Asks("git symbolic-ref with two names sets one")


_HARMLESS_KEYS: Final = words(
    "user.name user.email init.defaultbranch pull.rebase pull.ff push.default core.autocrlf core.filemode core.bare"
    " core.ignorecase core.eol core.editor core.quotepath core.repositoryformatversion color.ui remote.origin.fetch"
)


def _config(found: Invocation) -> None:
    """One key that is no secret; all of them may hold one, and two operands set a key."""
    keys = [key.lower() for key in found.operands]
    if len(keys) != 1 or not (keys[0] in _HARMLESS_KEYS or _is_upstream(keys[0])):
        raise Asks("git config sets keys, or shows what may be a secret")


def _is_upstream(key: str) -> bool:
    return key.startswith(("branch.", "remote.")) and key.endswith((".remote", ".merge", ".url"))


GIT: Final[Mapping[str, Program]] = {
    "status": program(
        "-sbvz --short --branch --long --verbose --show-stash --ahead-behind --no-ahead-behind --renames"
        " --no-renames --no-column",
        maybe="-u --porcelain --untracked-files --ignored --ignore-submodules --column --find-renames",
        operands=Kind.TEXT,
    ),
    "log": _LOG,
    "show": _LOG,
    "whatchanged": _LOG,
    "reflog": _first("", "show", "list", "exists", "HEAD"),
    "stash": _first("list", "show"),
    "worktree": _first("list"),
    "notes": _first("", "list", "show"),
    "bisect": _first("log"),
    "submodule": _first("", "status", "summary"),
    "diff": _DIFFS,
    "diff-tree": _log("-r --root --no-commit-id -v"),
    "diff-index": _DIFFS,
    "diff-files": _DIFFS,
    "range-diff": _log("--no-dual-color --dual-color --left-only", "--creation-factor"),
    "rev-list": _log(
        "--count --objects --quiet --header --timestamp --disk-usage --unpacked --use-bitmap-index --oneline"
        " --no-commit-header"
    ),
    "shortlog": program(
        "-snec --summary --numbered --email --committer --all --no-merges --merges --first-parent",
        text="--group --since --until --after --before --author --grep --format",
        maybe="-w --branches --tags",
        operands=Kind.TEXT,
        check=_formats,
    ),
    "cherry": program("-v --verbose", maybe="--abbrev", operands=Kind.TEXT),
    "blame": program(
        "-beflnpstwkc --porcelain --line-porcelain --root --show-stats --show-name --show-number --show-email"
        " --incremental"
        " --score-debug --color-lines --color-by-age --progress --no-progress --first-parent --minimal",
        text="-L --since --date --ignore-rev --reverse",
        read="-S --contents --ignore-revs-file",
        maybe="-MC --abbrev",
        operands=Kind.TEXT,
    ),
    "branch": _refs("-rv --remotes --show-current --verbose"),
    "tag": _refs("", maybe="-n"),
    "remote": program("-v --verbose --push --all", operands=Kind.TEXT, check=_remote),
    "config": program(
        "--get --get-all --local --show-origin --show-scope -z --null --bool --int --bool-or-int --path",
        text="--type --default",
        operands=Kind.TEXT,
        check=_config,
    ),
    "describe": program(
        "--all --tags --contains --long --always --debug --exact-match --first-parent",
        text="--match --exclude --candidates",
        maybe="--abbrev --dirty --broken",
        operands=Kind.TEXT,
    ),
    "rev-parse": program(
        "-q --show-toplevel --git-dir --absolute-git-dir --git-common-dir --show-prefix --show-cdup"
        " --show-superproject-working-tree"
        " --is-inside-work-tree --is-inside-git-dir --is-bare-repository --is-shallow-repository --verify --quiet"
        " --all"
        " --symbolic --symbolic-full-name --not --no-flags --no-revs --revs-only --flags --show-object-format"
        " --local-env-vars",
        text="--git-path --default --prefix",
        maybe="--short --abbrev-ref --branches --tags --remotes --since --until --after --before --disambiguate"
        " --path-format"
        " --exclude --glob",
        operands=Kind.TEXT,
    ),
    "ls-files": program(
        "-cdmostuvfkz --cached --deleted --modified --others --stage --unmerged --killed --directory"
        " --no-empty-directory"
        " --eol --error-unmatch --exclude-standard --full-name --ignored -i --deduplicate --recurse-submodules"
        " --sparse",
        text="-x --exclude --with-tree --format",
        maybe="--abbrev",
        operands=Kind.TEXT,
    ),
    "ls-tree": program(
        "-rdtlz --long --name-only --name-status --object-only --full-name --full-tree",
        text="--format",
        maybe="--abbrev",
        operands=Kind.TEXT,
    ),
    # Not --textconv, --filters; nor --batch: what it prints is told by its input.
    "cat-file": program("-tsep", maybe="--batch-check", operands=Kind.TEXT),
    # Not -O, --open-files-in-pager, --textconv, --no-index.
    "grep": program(
        "-aIivwhHrlLnqoPEFGcpWz --text --ignore-case --word-regexp --invert-match --full-name --extended-regexp"
        " --basic-regexp"
        " --perl-regexp --fixed-strings --line-number --column --files-with-matches --name-only"
        " --files-without-match --null"
        " --only-matching --count --no-color --break --heading --show-function --function-context --and --or --not"
        " --all-match"
        " --quiet --cached --untracked --exclude-standard --no-exclude-standard --recursive --no-recursive"
        " --no-textconv",
        text="-e --max-depth --threads --max-count -m",
        number="-ABC --after-context --before-context --context",
        read="-f",
        maybe="--color",
        digits=True,
        operands=Kind.TEXT,
    ),
    "for-each-ref": program(
        "--shell --perl --python --tcl --ignore-case --omit-empty",
        text=f"--sort --format --count --exclude {_FILTERING}",
        maybe="--color",
        operands=Kind.TEXT,
        check=_formats,
    ),
    "show-ref": program(
        "-qdsh --head --heads --branches --tags --verify --quiet --dereference",
        maybe="--hash --abbrev",
        operands=Kind.TEXT,
    ),
    "show-branch": program(
        "-ar --all --remotes --current --topo-order --date-order --sparse --list --merge-base --independent"
        " --no-name --sha1-name"
        " --topics --no-color",
        maybe="--more --color --reflog",
        operands=Kind.TEXT,
    ),
    "symbolic-ref": program("-q --short --quiet --recurse --no-recurse", operands=Kind.TEXT, check=_symbolic_ref),
    "merge-base": program("-a --all --octopus --independent --is-ancestor --fork-point", operands=Kind.TEXT),
    "name-rev": program(
        "--tags --all --name-only --no-undefined --always", text="--refs --exclude", operands=Kind.TEXT
    ),
    "count-objects": program("-vH --verbose --human-readable", most=0),
    "check-ignore": program("-qvn --quiet --verbose --non-matching --no-index", operands=Kind.TEXT),
    "check-attr": program("-a --all --cached", operands=Kind.TEXT),
    "check-ref-format": program("--branch --allow-onelevel --refspec-pattern --normalize", operands=Kind.TEXT),
    "version": program("--build-options", most=0),
}
