"""Recognises files that may be secrets; the same for commands, file tools, git and masks.

Two kinds: listed paths (below a home directory, the state directory, `SECRET_PATHS`), and files with the names of
environments, keys and credentials anywhere. Other secrets are not recognised.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, final

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
    # histories, which may contain typed passwords
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
"""Files, and directories with everything in them."""

_NAMED: Final = re.compile(
    # A file, or a directory with everything in it.
    r"(?:.*/)?(?:(?:\.(?:ssh|gnupg|aws|azure|kube|netrc|pgpass|npmrc|pypirc|git-credentials|htpasswd|vault-token|my\.cnf)"
    r"|\.\w*_history|id_(?:rsa|dsa|ecdsa|ed25519)(?:\.[^/]*)?"
    r"|(?!(?:ca|cacert|ca-bundle|ca-certificates)\.pem)[^/]*\.(?:pem|key|ppk|p12|pfx|jks|kdbx|keystore|keytab))(?:/.*)?"
    # A file only: the directory of a virtual environment may be called .env.
    r"|\.env(?:rc|\.(?!(?:[^/]*\.)?(?:example|sample|template|dist)\Z)[^/]*)?"
    r"|credentials(?:\.(?:json|ya?ml|toml|ini|xml|csv))?|secrets?\.(?:json|ya?ml|toml|ini|env)"
    r"|service[-_]?account[^/]*\.json|\.dockercfg|\.docker/config\.json|\.git/config)",
    re.IGNORECASE | re.DOTALL,
)
"""Names of files with credentials, in any directory; bundles of public certificates are excluded."""


def secret_paths(extra: Sequence[str], *, home: Path, state: Path) -> tuple[Path, ...]:
    """The default secrets below `home`, those of `extra`, and the state directory: absolute, no symlinks, sorted.

    They need not exist. An entry is `~` or begins with `~/` or `/`, and includes everything below; `*` is literal.

    Raises:
        ValueError: An entry of `extra` has another form, or contains a NUL.
    """
    found = {_resolved(state)}
    for entry in (*DEFAULT_SECRETS, *extra):
        if "\0" in entry or not (entry == "~" or entry.startswith(("~/", "/"))):
            raise ValueError(f"{entry!r} cannot be a listed secret; give a path that begins with / or ~/")
        found.add(_resolved(home / entry[2:] if entry[0] == "~" else Path(entry)))
    return tuple(sorted(found))


def named(path: str) -> bool:
    """Whether a path is a secret by its names alone; it need not exist."""
    return _NAMED.fullmatch(path) is not None


@final
@dataclass(frozen=True)
class Secrets:
    """Tells whether a path may be a secret. `listed` are absolute, without symlinks."""

    listed: tuple[Path, ...] = ()

    def __call__(self, path: Path) -> bool:
        """Whether a path is listed, below a listed one, or has the name of a secret, before or after its symlinks.

        A path that cannot be resolved counts as a secret.
        """
        try:
            real = path.resolve()
            if f"{real}/".startswith(self._prefixes):
                return True
            return any(named(str(name)) and not (_environment(name) and real.is_dir()) for name in (path, real))
        except (OSError, RuntimeError, ValueError):
            return True

    def written(self, path: str) -> bool:
        """The same for an absolute path by its text alone; the path need not exist any more."""
        return f"{path}/".startswith(self._prefixes) or named(path)

    @cached_property
    def _prefixes(self) -> tuple[str, ...]:
        return tuple("/" if str(secret) == "/" else f"{secret}/" for secret in self.listed)


def _environment(path: Path) -> bool:
    return path.name.lower().startswith(".env")


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path.absolute()
