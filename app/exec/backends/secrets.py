"""Listed secrets: what no command reads without a person's yes, whatever a classifier thinks of the command.

Two kinds: paths below a home directory (and the state directory), and `.env` files anywhere. A secret that is not
listed is not known; `SECRET_PATHS` adds one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Final

DEFAULT_SECRETS: Final[tuple[str, ...]] = (
    # keys and passwords of a person
    "~/.ssh",
    "~/.gnupg",
    "~/.pki",
    "~/.password-store",
    "~/.local/share/keyrings",
    "~/.local/share/kwalletd",
    "~/.config/op",
    "~/.config/Bitwarden CLI",
    "~/.config/sops",
    "~/.config/age",
    "~/.netrc",
    "~/.pgpass",
    "~/.my.cnf",
    "~/.mylogin.cnf",
    "~/.config/rclone",
    "~/.s3cfg",
    "~/.boto",
    # clouds and clusters
    "~/.aws",
    "~/.azure",
    "~/.config/gcloud",
    "~/.config/doctl",
    "~/.config/hcloud",
    "~/.oci",
    "~/.kube",
    "~/.config/helm",
    "~/.databricks",
    "~/.databrickscfg",
    "~/.snowflake",
    "~/.snowsql",
    "~/.fly",
    "~/.config/heroku",
    "~/.config/netlify",
    "~/.local/share/com.vercel.cli",
    "~/.vault-token",
    "~/.terraform.d",
    "~/.terraformrc",
    "~/.pulumi",
    # code hosts and registries
    "~/.git-credentials",
    "~/.config/git/credentials",
    "~/.config/gh",
    "~/.config/glab-cli",
    "~/.config/hub",
    "~/.docker",
    "~/.config/containers",
    "~/.npmrc",
    "~/.yarnrc.yml",
    "~/.bunfig.toml",
    "~/.pypirc",
    "~/.config/pip",
    "~/.config/pypoetry",
    "~/.cargo/credentials",
    "~/.cargo/credentials.toml",
    "~/.gem/credentials",
    "~/.m2/settings.xml",
    "~/.m2/settings-security.xml",
    "~/.gradle/gradle.properties",
    "~/.nuget/NuGet",
    "~/.composer/auth.json",
    "~/.config/composer/auth.json",
    "~/.kaggle",
    "~/.huggingface",
    "~/.cache/huggingface/token",
    "~/.cache/huggingface/stored_tokens",
    "~/.config/wandb",
    # agents and editors that keep keys
    "~/.claude",
    "~/.claude.json",
    "~/.codex",
    "~/.gemini",
    "~/.cursor",
    "~/.config/github-copilot",
    "~/.config/opencode",
    "~/.local/share/opencode",
    "~/.qwen",
    "~/.aider.conf.yml",
    "~/.continue",
    "~/.config/goose",
    # what was typed, with the passwords in it
    "~/.bash_history",
    "~/.zsh_history",
    "~/.local/share/fish/fish_history",
    "~/.python_history",
    "~/.node_repl_history",
    "~/.psql_history",
    "~/.mysql_history",
    "~/.sqlite_history",
    "~/.rediscli_history",
    "~/.lesshst",
    "~/.viminfo",
    # browsers: cookies are logins
    "~/.mozilla",
    "~/.thunderbird",
    "~/.config/google-chrome",
    "~/.config/chromium",
    "~/.config/BraveSoftware",
    "~/.config/microsoft-edge",
    "~/.config/vivaldi",
    "~/.config/opera",
    "~/snap/firefox",
    "~/snap/chromium",
)
"""Files and directories, a directory with all that is in it."""

_HARMLESS: Final = frozenset({"example", "sample", "template", "dist"})


def secret_paths(extra: Sequence[str], *, home: Path, state: Path) -> tuple[Path, ...]:
    """The default secrets below `home`, those of `extra`, and the state directory: absolute, symlinks resolved, sorted.

    They need not exist. An entry begins with `~/` (or is `~`) or `/`, and stands for itself and all below it; `*` has
    no meaning.

    Raises:
        ValueError: An entry of `extra` is neither, or holds a NUL.
    """
    found = {_resolved(state)}
    for entry in (*DEFAULT_SECRETS, *extra):
        if "\0" in entry or not (entry == "~" or entry.startswith(("~/", "/"))):
            raise ValueError(f"{entry!r} cannot be a listed secret; give a path that begins with / or ~/")
        found.add(_resolved(home / entry[2:] if entry[0] == "~" else Path(entry)))
    return tuple(sorted(found))


def is_secret(path: Path, secrets: Sequence[Path]) -> bool:
    """Whether `path`, symlinks resolved, is one of `secrets`, below one, or a `.env` file by either of its names.

    True also for a path that cannot be resolved: what is not known is not given away.
    """
    try:
        real = path.resolve()
        if f"{real}/".startswith(_prefixes(tuple(secrets))):
            return True
        return (is_dotenv(path.name) or is_dotenv(real.name)) and not real.is_dir()
    except (OSError, RuntimeError, ValueError):
        return True


@functools.lru_cache(maxsize=16)
def _prefixes(secrets: tuple[Path, ...]) -> tuple[str, ...]:
    return tuple("/" if str(secret) == "/" else f"{secret}/" for secret in secrets)


def is_dotenv(name: str) -> bool:
    """Whether a file of this name holds an environment with its secrets: `.env`, `.env.local`, not `.env.example`."""
    lowered = name.lower()
    return lowered == ".env" or (lowered.startswith(".env.") and lowered.rpartition(".")[2] not in _HARMLESS)


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path.absolute()
