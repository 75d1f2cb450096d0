"""Builds the environment of a child: a small base, and checked extras; nothing is inherited.

A name is refused if setting it makes a program run, load, trust or send something that the command's text does not
show. Names compare without case, because some runtimes do so.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final, Literal, NamedTuple

from shellback.exec.core import limits
from shellback.exec.core.errors import InvalidCommand
from shellback.exec.core.model import SHELL, CommandSpec

CHILD_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


_CREDENTIAL: Final = "it is or points to a credential"


class _Group(NamedTuple):
    names: str
    reason: str
    source: str


# Sources: lists of other projects, and names that were seen to run a payload.
_REFUSED: Final = (
    _Group(
        """LD_* LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT _RLD* DYLD_* LDR_* LIBPATH SHLIB_PATH GCONV_PATH GETCONF_DIR
        GLIBC_TUNABLES HOSTALIASES LOCALDOMAIN LOCPATH MALLOC_* NIS_PATH NLSPATH RESOLV_HOST_CONF RES_OPTIONS TMPDIR
        TZDIR PATH_LOCALE""",
        "it changes what programs load",
        "the C library, sudo",
    ),
    _Group(
        """BASH_* BASH_ENV ENV SHELLOPTS BASHOPTS PS0 PS1 PS2 PS4 PROMPT_COMMAND BASH_FUNC_* __BASH_FUNC* IFS CDPATH
        GLOBIGNORE EXECIGNORE FIGNORE FPATH NULLCMD READNULLCMD ZDOTDIR TMPPREFIX HISTFILE FCEDIT INPUTRC SHELL PATH
        HOME XDG_* XDG_CONFIG_HOME POSIXLY_CORRECT""",
        "it changes what a shell runs",
        "sudo, peers",
    ),
    _Group("TERMINFO TERMINFO_DIRS TERMPATH TERMCAP", "it points the terminal library at other files", "sudo"),
    _Group(
        """PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONINSPECT PYTHONUSERBASE PYTHONBREAKPOINT PYTHONEXECUTABLE
        PYTHONWARNINGS PYTHONPLATLIBDIR PYTHONPYCACHEPREFIX VIRTUAL_ENV PIP_* UV_*""",
        "it makes Python run or load other code",
        "sudo, peers",
    ),
    _Group(
        """PERL5LIB PERLLIB PERL5OPT PERL5DB PERL5DBCMD PERL5SHELL PERLIO_DEBUG RUBYLIB RUBYOPT RUBYSHELL GEM_HOME
        GEM_PATH BUNDLE_* BUNDLE_GEMFILE LUA_PATH LUA_PATH_* LUA_CPATH LUA_CPATH_* LUA_INIT LUA_INIT_* PHPRC
        PHP_INI_SCAN_DIR COMPOSER_HOME NODE_OPTIONS NODE_PATH NODE_EXTRA_CA_CERTS NODE_TLS_REJECT_UNAUTHORIZED
        NPM_CONFIG_* YARN_RC_FILENAME DENO_DIR BUN_CONFIG_REGISTRY JAVA_TOOL_OPTIONS _JAVA_OPTIONS JDK_JAVA_OPTIONS
        JAVA_OPTS MAVEN_OPTS GRADLE_OPTS SBT_OPTS ANT_OPTS CLASSPATH GRADLE_USER_HOME DOTNET_STARTUP_HOOKS
        DOTNET_ADDITIONAL_DEPS CORECLR_PROFILER* COR_PROFILER* AWKPATH AWKLIBPATH""",
        "it makes an interpreter run or load other code",
        "sudo, peers",
    ),
    _Group(
        """GOFLAGS GOENV GOPATH GOPROXY GONOSUMDB GONOSUMCHECK GONOPROXY GOPRIVATE GOTOOLCHAIN CGO_* RUSTC_WRAPPER
        RUSTFLAGS CARGO_HOME CARGO_BUILD_RUSTC* CARGO_REGISTRIES_* CC CXX CMAKE_*_COMPILER CMAKE_TOOLCHAIN_FILE CPATH
        LIBRARY_PATH MAKEFLAGS MFLAGS MAKEFILES CONFIG_SHELL CONFIG_SITE""",
        "it changes what a build runs or downloads",
        "peers",
    ),
    _Group(
        "GIT_* HGRCPATH SSH_ASKPASS *_ASKPASS *_RSH SVN_SSH",
        "it makes version control run other programs",
        "the manual of git, peers",
    ),
    _Group(
        """PAGER MANPAGER *_PAGER LESS* LESSOPEN LESSCLOSE LESS LESSKEYIN EDITOR VISUAL SUDO_EDITOR *_EDITOR BROWSER
        TAR_OPTIONS RIPGREP_CONFIG_PATH GREP_OPTIONS WGETRC CURL_HOME OPENSSL_CONF OPENSSL_ENGINES OPENSSL_MODULES
        FZF_DEFAULT_COMMAND FZF_DEFAULT_OPTS MANOPT MANROFFOPT PSQLRC""",
        "it makes a tool run other programs",
        "peers, our own trials",
    ),
    _Group(
        """*_PROXY SSL_CERT_* REQUESTS_CA_BUNDLE CURL_CA_BUNDLE SSLKEYLOGFILE DOCKER_* DOCKER_HOST KUBECONFIG HELM_HOME
        KRB5_CONFIG* KRB5_KTNAME""",
        "it changes whom programs connect to or trust",
        "sudo, peers",
    ),
    _Group(
        """AWS_* AZURE_* GOOGLE_APPLICATION_CREDENTIALS *_API_KEY *_TOKEN *_SECRET *_PASSWORD SSH_AUTH_SOCK
        GNUPGHOME""",
        _CREDENTIAL,
        "peers",
    ),
    _Group(
        "DBOS_* DATABASE_URL EXEC_* SHELLBACK_* LOGNAME USER",
        "it belongs to this program",
        "us",
    ),
)
_ALLOWED: Final = frozenset({"GIT_OPTIONAL_LOCKS", "GIT_TERMINAL_PROMPT"})

_GROUPS: Final = {name: group for group in _REFUSED for name in group.names.split()}
_DANGEROUS_ENV_VARS: Final = frozenset(name for name in _GROUPS if "*" not in name)
_DANGEROUS_PATTERNS: Final = tuple(
    (re.compile(name.replace("*", ".*"), re.DOTALL), name)
    for name in sorted(_GROUPS, key=lambda name: (name.startswith("*"), -len(name)))  # the most specific first
    if "*" in name
)

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LOCALE_NAME: Final = re.compile(r"LANG|LANGUAGE|LC_[A-Z]+|LINGUAS|TERM|TZ|COLORTERM")


_OWN_FILES: Final = {
    "XDG_CONFIG_HOME": ".config", "XDG_DATA_HOME": ".local/share", "XDG_STATE_HOME": ".local/state",
    "XDG_CACHE_HOME": ".cache", "PYTHONUSERBASE": ".local", "IPYTHONDIR": ".ipython", "CONDARC": ".condarc",
    "GIT_CONFIG_GLOBAL": ".gitconfig", "HGRCPATH": ".hgrc", "CURL_HOME": "", "WGETRC": ".wgetrc", "NETRC": ".netrc",
    "NPM_CONFIG_USERCONFIG": ".npmrc", "NPM_CONFIG_CACHE": ".npm", "DENO_DIR": ".deno", "BUNDLE_USER_HOME": ".bundle",
    "GEMRC": ".gemrc", "IRBRC": ".irbrc", "COMPOSER_HOME": ".composer", "GRADLE_USER_HOME": ".gradle",
    "CARGO_HOME": ".cargo", "RUSTUP_HOME": ".rustup", "GOPATH": "go", "R_PROFILE_USER": ".Rprofile",
    "R_ENVIRON_USER": ".Renviron", "PSQLRC": ".psqlrc", "MYSQL_HOME": ".mysql", "INPUTRC": ".inputrc",
    "HISTFILE": ".bash_history", "LESSKEY": ".less", "LESSKEYIN": ".lesskey", "LESSHISTFILE": ".lesshst",
    "SCREENRC": ".screenrc", "DOCKER_CONFIG": ".docker", "KUBECONFIG": ".kube/config", "AWS_CONFIG_FILE": ".aws/config",
    "AWS_SHARED_CREDENTIALS_FILE": ".aws/credentials", "TF_CLI_CONFIG_FILE": ".terraformrc",
}  # fmt: skip
"""Variables that point programs to the private home for files that they would read in HOME."""
_VIM: Final = "set runtimepath=$VIMRUNTIME packpath=$VIMRUNTIME"
"""Read by vi, Vim and Neovim instead of their start-up files."""


def check_env(given: Mapping[str, str], *, granted: Collection[str] = ()) -> None:
    """Check variables that a caller adds to a command's environment; `granted` names are not refused.

    Raises:
        InvalidCommand: A name or value is refused; the message has the name and the rule, never the value.
    """
    if len(given) > limits.ENV_VARIABLES:
        raise InvalidCommand(f"env has {len(given)} variables; at most {limits.ENV_VARIABLES} are accepted")
    size = 0
    for name, value in given.items():
        _check_name(name, granted)
        _check_value(name, value)
        size += len(name) + len(value.encode("utf-8", "surrogateescape")) + 2
    if size > limits.ENV_BYTES:
        raise InvalidCommand(f"env takes {size} bytes; at most {limits.ENV_BYTES} are accepted, use a file instead")


def home_of(spec: CommandSpec, *, workspace: str, private: str) -> str:
    """HOME of a command, with every backend and tool: `workspace` for logins and shells, else the `private` home."""
    return workspace if spec.login or spec.kind == SHELL else private


def child_env(
    given: Mapping[str, str],
    *,
    home: str,
    user: str,
    private: str | None = None,
    pty: bool = False,
    mode: Literal["extend", "replace"] = "extend",
) -> dict[str, str]:
    """The environment of one command: the base and `given`; with `mode` "replace" the base is PATH alone.

    If HOME is not the `private` home, other commands may have written it, so variables point programs away from it.
    Nothing is inherited; `given` must have passed `check_env`. The supervisor adds the session's marker.
    """
    apart = private is not None and private != home
    if mode == "replace":
        return {"PATH": CHILD_PATH, **given}
    return {
        "PATH": CHILD_PATH,
        "HOME": home,
        "USER": user,
        "LOGNAME": user,
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color" if pty else "dumb",
        "NO_COLOR": "1",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "GIT_TERMINAL_PROMPT": "0",
        **({name: f"{private}/{below}".rstrip("/") for name, below in _OWN_FILES.items()} if apart else {}),
        **({"VIMINIT": _VIM} if apart else {}),
        **given,
    }


def check_placeholder(name: str) -> None:
    """Check the name of a variable that is to hold the placeholder of a credential; raises InvalidCommand."""
    if name in child_env({}, home="", user=""):
        raise InvalidCommand(f"env name {name!r} is one that each command has")
    _check_name(name, (), _CREDENTIAL)


def _check_name(name: str, granted: Collection[str], allowed: str = "") -> None:
    if not _NAME.fullmatch(name):
        raise InvalidCommand(f"env name {name!r} is not accepted; names match [A-Za-z_][A-Za-z0-9_]*")
    upper = name.upper()
    if upper in _ALLOWED or name in granted:
        return
    rule = upper if upper in _DANGEROUS_ENV_VARS else None
    if rule is None:
        rule = next((name for pattern, name in _DANGEROUS_PATTERNS if pattern.fullmatch(upper)), None)
    if rule is not None and _GROUPS[rule].reason != allowed:
        group = _GROUPS[rule]
        raise InvalidCommand(
            f"env name {name!r} is refused (rule {rule}): {group.reason} (listed by {group.source}); "
            "set it inside the command, where it is seen"
        )


def _check_value(name: str, value: str) -> None:
    if "\0" in value:
        raise InvalidCommand(f"env value of {name!r} holds a NUL byte")
    if value.lstrip().startswith("()"):
        raise InvalidCommand(f"env value of {name!r} begins like a shell function, which old shells would run")
    if _LOCALE_NAME.fullmatch(name.upper()) and ("/" in value or "%" in value):
        raise InvalidCommand(f"env value of {name!r} holds '/' or '%', which would name a file; give a plain name")
