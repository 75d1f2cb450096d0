"""A child's environment is built up, and names that hide what runs are refused."""

from __future__ import annotations

import os

import pytest

from shellback.exec.core import environment, limits
from shellback.exec.core.environment import check_env, child_env
from shellback.exec.core.errors import InvalidCommand

DANGEROUS = environment._DANGEROUS_ENV_VARS  # pyright: ignore[reportPrivateUsage]


LISTED = {
    "it changes what programs load": """
        LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT LD_X _RLD_LIST DYLD_INSERT_LIBRARIES LDR_PRELOAD LIBPATH SHLIB_PATH
        GCONV_PATH GETCONF_DIR GLIBC_TUNABLES HOSTALIASES LOCALDOMAIN LOCPATH MALLOC_TRACE NIS_PATH NLSPATH
        RESOLV_HOST_CONF RES_OPTIONS TMPDIR TZDIR PATH_LOCALE""",
    "it changes what a shell runs": """
        BASH_ENV ENV SHELLOPTS BASHOPTS PS4 PROMPT_COMMAND BASH_FUNC_x __BASH_FUNC IFS CDPATH GLOBIGNORE FPATH
        PS0 PS1 PS2 EXECIGNORE FIGNORE NULLCMD READNULLCMD ZDOTDIR TMPPREFIX HISTFILE FCEDIT INPUTRC SHELL PATH HOME
        XDG_CONFIG_HOME XDG_DATA_DIRS BASH_LOADABLES_PATH POSIXLY_CORRECT""",
    "it points the terminal library at other files": "TERMINFO TERMINFO_DIRS TERMPATH TERMCAP",
    "it makes Python run or load other code": """
        PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONINSPECT PYTHONUSERBASE PYTHONBREAKPOINT PYTHONEXECUTABLE
        PYTHONWARNINGS PYTHONPLATLIBDIR PYTHONPYCACHEPREFIX VIRTUAL_ENV PIP_INDEX_URL UV_INDEX""",
    "it makes an interpreter run or load other code": """
        PERL5LIB PERLLIB PERL5OPT PERL5DB PERL5DBCMD PERL5SHELL PERLIO_DEBUG RUBYSHELL RUBYLIB RUBYOPT GEM_HOME GEM_PATH
        BUNDLE_GEMFILE LUA_PATH LUA_PATH_5_4 LUA_CPATH LUA_INIT LUA_INIT_5_4 PHPRC PHP_INI_SCAN_DIR
        COMPOSER_HOME NODE_OPTIONS NODE_PATH NODE_EXTRA_CA_CERTS NODE_TLS_REJECT_UNAUTHORIZED
        NPM_CONFIG_REGISTRY npm_config_registry YARN_RC_FILENAME DENO_DIR BUN_CONFIG_REGISTRY
        JAVA_TOOL_OPTIONS _JAVA_OPTIONS JDK_JAVA_OPTIONS JAVA_OPTS MAVEN_OPTS GRADLE_OPTS SBT_OPTS ANT_OPTS
        CLASSPATH GRADLE_USER_HOME DOTNET_STARTUP_HOOKS DOTNET_ADDITIONAL_DEPS CORECLR_PROFILER_PATH
        COR_PROFILER AWKPATH AWKLIBPATH""",
    "it changes what a build runs or downloads": """
        GOFLAGS GOENV GOPATH GOPROXY GONOSUMDB GONOSUMCHECK GONOPROXY GOPRIVATE GOTOOLCHAIN CGO_CFLAGS
        RUSTC_WRAPPER RUSTFLAGS CARGO_HOME CARGO_BUILD_RUSTC_WRAPPER CARGO_REGISTRIES_X CC CXX
        CMAKE_C_COMPILER CMAKE_TOOLCHAIN_FILE CONFIG_SHELL CONFIG_SITE CPATH LIBRARY_PATH MAKEFLAGS MFLAGS MAKEFILES""",
    "it makes version control run other programs": """
        GIT_CONFIG_COUNT GIT_SSH GIT_SSH_COMMAND GIT_EXTERNAL_DIFF GIT_PAGER GIT_EDITOR GIT_ASKPASS
        GIT_EXEC_PATH GIT_DIR GIT_TEMPLATE_DIR GIT_PROXY_COMMAND HGRCPATH SSH_ASKPASS SUDO_ASKPASS CVS_RSH SVN_SSH""",
    "it makes a tool run other programs": """
        PAGER MANPAGER SYSTEMD_PAGER LESSOPEN LESSCLOSE LESS LESSKEYIN EDITOR VISUAL SUDO_EDITOR BROWSER
        TAR_OPTIONS RIPGREP_CONFIG_PATH GREP_OPTIONS WGETRC CURL_HOME OPENSSL_CONF OPENSSL_ENGINES
        OPENSSL_MODULES FZF_DEFAULT_COMMAND FZF_DEFAULT_OPTS MANOPT MANROFFOPT PSQLRC""",
    "it changes whom programs connect to or trust": """
        HTTP_PROXY https_proxy ALL_PROXY SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE
        SSLKEYLOGFILE DOCKER_HOST DOCKER_CONFIG KUBECONFIG HELM_HOME KRB5_CONFIG KRB5_KTNAME""",
    "it is or points to a credential": """
        AWS_PROFILE AWS_SECRET_ACCESS_KEY AZURE_CLIENT_ID GOOGLE_APPLICATION_CREDENTIALS OPENAI_API_KEY
        GITHUB_TOKEN CLIENT_SECRET DB_PASSWORD SSH_AUTH_SOCK GNUPGHOME""",
    "it belongs to this program": "DBOS_X DATABASE_URL EXEC_UID SHELLBACK_HOME LOGNAME USER",
}


@pytest.mark.parametrize(("reason", "name"), [(why, name) for why, names in LISTED.items() for name in names.split()])
def test_each_name_that_others_refuse_is_refused_for_its_reason_whatever_its_case(reason: str, name: str) -> None:
    for spelling in {name, name.lower(), name.title()}:
        said = rf"env name '{spelling}' is refused \(rule [^)]+\): {reason} \(listed by [^)]+\)"
        with pytest.raises(InvalidCommand, match=said):
            check_env({spelling: "x"})


@pytest.mark.parametrize(
    ("env", "said"),
    [
        *(({"FOO": value}, "begins like a shell function") for value in ("() { :; }; touch x", " (){ x; }", "()")),
        *(({name: "x"}, r"names match \[A-Za-z_\]") for name in ("", "1A", "A-B", "A B", "A=B", "Ä", "A\0", "A\n")),
        *(
            ({name: value}, "holds '/' or '%'")
            for name in ("LANG", "LC_MESSAGES", "TERM", "TZ", "LANGUAGE", "COLORTERM")
            for value in ("../x", "/etc/x", "a%nb")
        ),
        ({"FOO": "a\0b"}, "holds a NUL byte"),
        ({f"V{number}": "" for number in range(257)}, "has 257 variables; at most 256"),
        ({"BIG": "x" * limits.ENV_BYTES}, f"at most {limits.ENV_BYTES}"),
    ],
)
def test_what_is_no_name_no_value_or_too_much_is_refused(env: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidCommand, match=said):
        check_env(env)


def test_the_list_of_the_specification_is_a_frozenset_with_its_names() -> None:
    assert isinstance(DANGEROUS, frozenset)
    assert {"LD_PRELOAD", "PYTHONPATH", "BASH_ENV", "NODE_OPTIONS", "PATH", "HOME", "IFS"} <= DANGEROUS
    # Each of them is written down here too, so that none goes unseen.
    assert DANGEROUS.issubset(name for names in LISTED.values() for name in names.split())


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("LD_BIND_NOW", r"LD_\*"),
        ("BASH_FUNC_ls", r"BASH_FUNC_\*"),
        ("git_ssh_command", r"GIT_\*"),
        ("PIP_INDEX_URL", r"PIP_\*"),
        ("https_proxy", r"\*_PROXY"),
        ("OPENAI_API_KEY", r"\*_API_KEY"),
        ("CMAKE_CXX_COMPILER", r"CMAKE_\*_COMPILER"),
        ("SHELLBACK_SESSION", r"SHELLBACK_\*"),
        ("AWS_PROFILE", r"AWS_\*"),
        ("DBOS_SYSTEM", r"DBOS_\*"),
    ],
)
def test_patterns_are_refused_and_named(name: str, rule: str) -> None:
    with pytest.raises(InvalidCommand, match=rf"rule {rule}"):
        check_env({name: "x"})


@pytest.mark.parametrize(
    "name",
    ["FOO", "_x", "GIT_TERMINAL_PROMPT", "CI", "DEBUG", "LC_ALL", "TZ", "TERM", "OLD_PATHS", "LDFLAGS", "MY_PATH",
     "PATHS", "GITHUB_REF", "PYTHONUNBUFFERED", "NODE_ENV", "TOKENS"],
)  # fmt: skip
def test_ordinary_names_pass_also_where_they_begin_like_a_refused_one(name: str) -> None:
    check_env({name: "value"})


def test_the_message_never_holds_the_value() -> None:
    with pytest.raises(InvalidCommand) as refusal:
        check_env({"LD_PRELOAD": "s3cret"})
    assert "s3cret" not in str(refusal.value)


def test_nothing_of_ours_gets_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_SECRET", "x")
    monkeypatch.setenv("LANG", "xx_XX")
    built = child_env({"FOO": "1"}, home="/ws", user="nobody")
    assert "OUR_SECRET" not in built
    assert os.environ["OUR_SECRET"] == "x"
    assert built["FOO"] == "1"
    assert (built["HOME"], built["USER"], built["LANG"], built["TERM"]) == ("/ws", "nobody", "C.UTF-8", "dumb")
    assert built["PATH"] == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def test_a_terminal_is_named_only_where_there_is_one() -> None:
    assert child_env({}, home="/", user="u", pty=True)["TERM"] == "xterm-256color"


def test_an_accepted_variable_overrides_the_base() -> None:
    assert child_env({"TERM": "vt100"}, home="/", user="u")["TERM"] == "vt100"
