"""Which values of settings, variables and files are secret, by one rule."""

from __future__ import annotations

import json
import os
import secrets
import string
import time
from pathlib import Path

import pytest

from shellback.exec.log.known_values import _SHARE, FILE_BYTES, SecretFiles, of_text, of_variable, said, worth

# pyright: reportPrivateUsage=false


def word(count: int = 24) -> str:
    """Random letters and digits, with each kind."""
    return f"a1B{''.join(secrets.choice(string.ascii_letters + string.digits) for _ in range(count - 3))}"


@pytest.mark.parametrize(
    "value",
    [
        "", "short", "1234567", "password", "Password", "production", "postgres", "aaaaaaaa", "00000000", "********",
        "/usr/local/bin/python", "~/.config/thing", "./relative/path", "C:\\Windows\\system32", "$DB_PASSWORD",
        "${DB_PASSWORD}", "%(password)s", "{{ vault_key }}", "<your key>", "https://example.org/path",
        "two\nlines here", "$HOME/.config/token", "${{ secrets.DEPLOY }}", "%DB_PASSWORD%", "$(pass show deploy)",
        "jdbc:postgresql://db.example.org:5432/app", "mongodb://a:27017,b:27017/?replicaSet=rs0", "redis://[::1]:6379",
        "https://{host}:${PORT}/path", "HTTPS://example.org", "JDBC:Oracle://db.example.org", "http://a.example:1, http://b.example:2",
        "{{ .Values.s3Token | b64enc }}", "${{ secrets.AWS_S3_KEY }}", "$HOME/.config/App2/token", "${USER}:${PASS2}",
        "%env(API_TOKEN)%", "{env:API_TOKEN}", "$env:API_TOKEN", "sqlite:////var/lib/app/state.db", "op://vault/deploy/password",
    ],
)  # fmt: skip
def test_short_values_common_words_paths_and_references_are_never_masked(value: str) -> None:
    assert not worth(value, said=True)


def test_what_a_name_calls_a_secret_is_masked_from_eight_characters_on() -> None:
    assert worth("hunter22", said=True)
    assert worth("correct horse battery", said=True)
    assert worth(f"/{word(39)}", said=True), "base64 may begin with a slash"


@pytest.mark.parametrize(
    "value",
    [
        "qqpv_://WBzJ!9TCF:2^S!p=/H~YJiq0v!lZ", "correct://horse battery", "k7://%x!yz-W", "ab://horse:staple", "8//://x9Q",
        "$2b$12$R9h/cIPz0gi.URNNX3kh2O", "$ummer2024!", "%aB3-x9Q/r", "{aB3x9Qr}", "<aB3x9Qr7>", "{aB3}x9Qr-7",
        "$ecretpass1", "{s3cret99}", "%s3cret99%", "${A_VALUE}:s3cret99", "qQehIjC-Ba://Csh^A@qI2Z",
    ],
)  # fmt: skip
def test_a_secret_may_begin_as_a_reference_does_or_have_in_it_what_an_address_has(value: str) -> None:
    assert list(of_variable("DEPLOY_TOKEN", value)) == [("DEPLOY_TOKEN", value)]
    assert values(".env", f"DEPLOY_TOKEN='{value}'\n") == {value}


@pytest.mark.parametrize("part", ["a", "$a", "{a}", "a.", "%41", "a:1,", "<", "x@", "/a", "${{"])
def test_a_long_value_is_judged_at_once(part: str) -> None:
    before = time.thread_time()
    for begin in ("ab://", "$", "%", "<", "/", "jdbc:ab://["):
        value = f"{begin}{part * (FILE_BYTES // 4)} !"
        assert list(of_variable("A_TOKEN", value))[-1:] == ([("A_TOKEN", value)] if worth(value, said=True) else [])
    assert time.thread_time() - before < 2


@pytest.mark.parametrize(
    "value", ["eu-central-1", "registry.example.org", "1.2.3-beta.4+build.17", "2026-11-26T10:00:00", "longwordonly"]
)
def test_without_such_a_name_a_value_has_to_look_random(value: str) -> None:
    assert not worth(value, said=False)
    assert worth(word(), said=False)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("API_KEY", True), ("db-password", True), ("_authToken", True), ("client_secret", True), ("AUTHOR", False),
        ("PUBLIC_KEY", False), ("KEYBOARD", False), ("GOOGLE_CREDENTIALS_FILE", False), ("REGION", False),
        ("CONVERSION_API_TOKEN", True), ("DIGEST_KEY", True), ("AWS_ACCESS_KEY_ID", True), ("KEY_TYPE", False),
        ("WEBHOOK_EVENTS", False), ("COOKIE_DOMAIN", False), ("MAX_TOKENS", False),
    ],
)  # fmt: skip
def test_a_name_says_whether_its_value_is_secret(name: str, expected: bool) -> None:
    assert said(name) is expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GITHUB_SHA", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b"), ("HOSTNAME", "worker-5d4f8b7c9-abcde"),
        ("ANTHROPIC_MODEL", "claude-sonnet-4-20250514"), ("COMPOSE_PROJECT_NAME", "my_project_12345678"),
        ("GIT_BRANCH", "feature_add_login_2"), ("INVOCATION_ID", "0123456789abcdef0123456789abcdef"),
        ("KEY_TYPE", "ssh-ed25519"), ("WEBHOOK_EVENTS", "pull_request"), ("MAX_TOKENS", "16384000"),
    ],
)  # fmt: skip
def test_names_of_hosts_models_and_commits_are_no_secrets_although_they_look_random(name: str, value: str) -> None:
    assert list(of_variable(name, value)) == []
    assert list(of_text(".env", f"{name}={value}\n")) == []


@pytest.mark.parametrize("between", [" ", ",", " #"])
def test_a_long_line_is_read_at_once(between: str) -> None:
    before = time.thread_time()
    assert list(of_text(".env", f"A_TOKEN=x{between * (FILE_BYTES // 4)}y\n")) is not None
    assert time.thread_time() - before < 1, "it took a minute, in which the process did nothing else"


def test_files_that_commands_write_leave_room_for_listed_ones_and_for_other_workspaces(tmp_path: Path) -> None:
    listed, ours, theirs = tmp_path / "token", tmp_path / "ours", tmp_path / "theirs"
    listed.write_text(first := word())
    for number in range(310):
        (theirs / f"d{number}").mkdir(parents=True)
        (theirs / f"d{number}/.env").write_text("".join(f"A{one}_KEY={word()}\n" for one in range(5)))
    ours.mkdir()
    (ours / ".env").write_text(f"B_KEY={(second := word())}\n")
    found = [value for _, value in SecretFiles(lambda: [listed], lambda: [theirs, ours])()]
    assert {first, second} <= set(found[:1000])


def test_values_with_passwords_in_them_leave_out_no_other_value(tmp_path: Path) -> None:
    made = {f"{word()}://ann:{word()}@!{word()}" for _ in range(20)} | {word() for _ in range(_SHARE - 20)}
    lines = [f"A{number}_KEY={one}" for number, one in enumerate(made)]
    (tmp_path / ".env").write_text("\n".join([*lines, *lines]))
    assert {value for _, value in SecretFiles(tuple, lambda: [tmp_path])()} == made
    (tmp_path / ".env").write_text("\n".join(lines[1:]))
    assert len({value for _, value in SecretFiles(tuple, lambda: [tmp_path])()} - made) == 1, "there is room for one"


def test_the_path_of_a_database_is_no_secret() -> None:
    place = f"shellback-stage-{word()}"
    assert list(of_variable("DATABASE_URL", f"sqlite:////tmp/{place}/home/state.db", secret=True)) == []
    password = word()
    url = f"postgresql+psycopg://ann:{password}@db/{place}?host=%2Ftmp%2F{place}&sslpassword={password[::-1]}"
    found = [("DATABASE_URL", password), ("DATABASE_URL", password[::-1])]
    assert list(of_variable("DATABASE_URL", url, secret=True)) == found


def test_each_password_of_several_addresses_is_secret_whatever_it_has() -> None:
    one, two = f"{word()}<{word()}", word()
    found = list(of_variable("BROKERS", f"amqp://a:{one}@a.example,amqp://b:{two}@b.example"))
    assert {value for _, value in found} == {one, two}


def test_of_an_address_the_password_and_what_looks_random_are_secret() -> None:
    password, token = word(), word()
    found = dict(of_variable("DATABASE_URL", f"postgresql://app:{password}@db.example.org/app?sslmode=require"))
    assert found == {"DATABASE_URL": password}
    assert [value for _, value in of_variable("NOTIFY_WEBHOOK", f"https://hooks.example.org/T1/{token}")] == [token]
    assert list(of_variable("DATABASE_URL", "postgresql://app:app-of-us@app-of-us/app")) == []
    assert list(of_variable("DOCKER_HOST", "unix:///var/run/docker.sock")) == []


def values(file: str, text: str) -> set[str]:
    return {value for _, value in of_text(file, text)}


def test_the_values_of_known_kinds_of_files_are_found() -> None:
    one, two = word(), word(40)
    assert values(".env", f"export API_KEY='{one}'\nDEBUG=true\nNODE_ENV=production\nID={two} # mine\n") == {one, two}
    assert values(".npmrc", f"//registry.example.org/:_authToken={one}\nloglevel=warn\n") == {one}
    assert values("credentials", f"[default]\naws_secret_access_key = {two}\nregion = eu-central-1\n") == {two}
    assert values(".netrc", f"machine example.org login me password {one}\n") == {one}
    assert values(".git-credentials", f"https://me:{one}@example.org\n") == {one}
    assert values(".pgpass", f"db:5432:app:me:{one}\n") == {one}
    lines = f"# ours\ndb:5432:app:me:{one}\\:and\\\\{two}\n*:*:*:do\\\\:{two}:end\n"
    assert values(".pgpass", lines) == {f"{one}:and\\{two}", two}
    assert values(".pgpass", f"db:5432:app:me:{one}") == {one}
    assert values(
        "config.json", json.dumps({"auths": {"r.example.org": {"auth": one}}, "HttpHeaders": {"A": two}})
    ) == {one}
    assert values("hosts.yml", f"example.org:\n    user: somebody\n    oauth_token: {one}\n") == {one}
    assert values(".vault-token", f"{one}\n") == {one}
    assert values(".vault-token", f"{one}://!:{two}\n") == {f"{one}://!:{two}"}
    assert values(".env", "APPLICATION=standard\n") == values("credentials.json", '{"application":7}') == set()
    body = [word(64), word(64), word(12)]
    key = "\n".join(["-----BEGIN OPENSSH PRIVATE KEY-----", *body, "-----END OPENSSH PRIVATE KEY-----", ""])
    assert values("id_ed25519", key) == set(body)
    assert values("sa.json", json.dumps({"private_key": key, "type": "service_account"})) >= set(body)
    assert (
        values("ca.pem", f"-----BEGIN CERTIFICATE-----\n{word(64)}\n{word(64)}\n-----END CERTIFICATE-----\n") == set()
    )


def test_files_are_found_below_a_directory_by_their_names_and_read_again_when_they_change(tmp_path: Path) -> None:
    listed, workspace = tmp_path / "listed", tmp_path / "workspace"
    (workspace / "app").mkdir(parents=True)
    listed.mkdir()
    first, second, third = word(), word(), word()
    (listed / "anything").write_text(f"token: {first}\n")
    (workspace / "app" / ".env").write_text(f"KEY={second}\n")
    (workspace / "app" / "main.py").write_text(f"KEY = {third}\n")
    files = SecretFiles(lambda: [listed, tmp_path / "missing"], lambda: [workspace])
    assert {value for _, value in files()} == {first, second}
    (workspace / "app" / ".env").write_text(f"KEY={third}x\n")
    assert {value for _, value in files()} == {first, f"{third}x"}


def test_a_file_that_an_editor_has_emptied_has_the_values_that_it_had(tmp_path: Path) -> None:
    before, after = word(), word()
    (tmp_path / ".env").write_text(f"KEY={before}\n")
    files = SecretFiles(tuple, lambda: [tmp_path])
    for text, value in ((f"KEY={before}\n", before), ("", before), ("", before), (f"KEY={after}\n", after)):
        (tmp_path / ".env").write_text(text)
        assert [value for _, value in files()] == [value], text


def test_what_is_no_small_text_is_left_alone(tmp_path: Path) -> None:
    value = word()
    (tmp_path / "big.key").write_text(f"KEY={value}\n" + "x" * FILE_BYTES)
    (tmp_path / "binary.key").write_bytes(b"KEY=" + value.encode() + b"\0\xff")
    (tmp_path / "link.key").symlink_to(tmp_path / "target")
    (tmp_path / "target").write_text(f"KEY={value}\n")
    os.mkfifo(tmp_path / "pipe.key")
    assert list(SecretFiles(tuple, lambda: [tmp_path])()) == []
