"""The promises of every shell as tests: derive a class and implement `create_shell`."""

from __future__ import annotations

import concurrent.futures
import re
import unittest
import uuid
from abc import abstractmethod
from dataclasses import FrozenInstanceError, fields
from functools import partial
from typing import ClassVar, Final

from shellback.exec.shell.protocol import EnvironmentSnapshot, ExecutionResult, Shell, WhichResult

LIMIT: Final = 32 * 1024
_TRICKY: Final = (
    *("FOO=1", "-n", "--", "", " ", "*", "?", "[a]", "~", "$HOME", "`id`", "$(id)", "a'b", '"', "\\", "a\\'b", "#"),
    *(";", "&&", "|", ">x", "a\nb", "\t", "{a,b}", "!1", "ünï", "\u2028"),
)


class ShellShapeTests:
    """Tests of the interface, for a shell that runs nothing; `ShellProtocolTests` includes them."""

    cannot: ClassVar[dict[str, str]] = {}

    @abstractmethod
    def create_shell(self) -> Shell:
        """The shell under test, perhaps a shared one, in a writable directory. The deriving class closes it."""
        raise NotImplementedError

    def _shell(self, *needed: str) -> Shell:
        for one in needed:
            if one in self.cannot:
                raise unittest.SkipTest(self.cannot[one])
        return self.create_shell()

    # -- the five that the protocol's document has -------------------------------------------------

    def test_execute_echo(self) -> None:
        result = self._shell().execute(["echo", "hello"])
        assert result.exit_code == 0
        assert result.success
        assert "hello" in result.stdout

    def test_execute_nonexistent_command(self) -> None:
        result = self._shell().execute(["nonexistent_command_12345"])
        assert result.exit_code == 127
        assert not result.success

    def test_timeout_enforced(self) -> None:
        result = self._shell().execute(["sleep", "10"], timeout_seconds=0.5)
        assert result.timed_out
        assert not result.success
        assert (result.exit_code, result.signal) == (-1, 9)
        assert result.duration_seconds < 2.0
        assert result.stderr.splitlines()[-1] == "Command timed out after 0.5s"

    def test_environment_variables(self) -> None:
        result = self._shell().execute(["sh", "-c", "echo $MY_VAR"], env={"MY_VAR": "test_value"})
        assert "test_value" in result.stdout

    def test_working_directory(self) -> None:
        result = self._shell("tmp").execute(["pwd"], cwd="/tmp")  # noqa: S108 - the document's own test
        assert "/tmp" in result.stdout  # noqa: S108

    # -- shape -------------------------------------------------------------------------------------

    def test_a_result_cannot_be_changed_and_has_exactly_the_documented_fields(self) -> None:
        result = self._shell().execute(["echo", "hello"])
        assert [one.name for one in fields(ExecutionResult)] == [
            *("exit_code", "stdout", "stderr", "command", "cwd", "duration_seconds", "truncated", "timed_out", "signal")
        ]
        assert isinstance(result.duration_seconds, float)
        _refuses(FrozenInstanceError, lambda: setattr(result, "exit_code", 1))
        assert not hasattr(result, "__dict__")

    def test_a_shell_says_what_it_is(self) -> None:
        shell = self._shell()
        assert shell.backend_name
        assert isinstance(shell.sandboxed, bool)
        assert isinstance(shell.network_enabled, bool)
        assert isinstance(shell.default_timeout, float)
        assert isinstance(shell, Shell)

    def test_which_and_env_answer_with_their_types(self) -> None:
        shell = self._shell()
        assert isinstance(shell.which("sh"), WhichResult)
        assert isinstance(shell.env(), EnvironmentSnapshot)


class ShellProtocolTests(ShellShapeTests):
    """Derive from it, implement `create_shell`, and give the class a name that begins with `Test`.

    `cannot` maps unsupported features to reasons, to skip their tests: `tmp` (commands begin in /tmp), `threads`.
    """

    # -- commands ----------------------------------------------------------------------------------

    def test_a_string_is_read_by_a_shell_and_a_sequence_is_not(self) -> None:
        shell = self._shell()
        line = "echo $((1 + 1)) | cat"
        assert shell.execute(line).stdout == "2\n"
        assert shell.execute(["echo", "$((1 + 1))", "|", "cat"]).stdout == "$((1 + 1)) | cat\n"
        assert shell.execute(line).command == (line,)
        assert shell.execute(["echo", "a"]).command == ("echo", "a")

    def test_every_word_of_a_sequence_reaches_the_program_as_it_is(self) -> None:
        result = self._shell().execute(["printf", "%s\\0", *_TRICKY])
        assert tuple(result.stdout.split("\0")[:-1]) == _TRICKY

    def test_the_first_word_of_a_sequence_is_a_program_and_nothing_else(self) -> None:
        shell = self._shell()
        for word in ("FOO=1", "if", "*", "cd", "eval", "{", "-n", "exit", "."):
            assert shell.execute([word, "echo x"]).exit_code in {126, 127}, word

    def test_streams_are_apart_and_the_exit_code_is_the_commands_own(self) -> None:
        result = self._shell().execute("echo out; echo err >&2; exit 3")
        assert (result.exit_code, result.stdout, result.stderr, result.signal) == (3, "out\n", "err\n", None)
        assert not result.success

    def test_a_signal_that_ends_a_command_is_told(self) -> None:
        result = self._shell().execute("kill -TERM $$")
        assert (result.exit_code, result.signal, result.timed_out) == (-15, 15, False)

    def test_a_file_that_is_no_program_is_126(self) -> None:
        shell = self._shell()
        name = f"plain-{uuid.uuid4().hex}"
        assert shell.execute(f"echo text > {name} && chmod 600 {name}").success
        assert shell.execute([f"./{name}"]).exit_code == 126

    def test_what_would_ruin_the_machine_is_refused(self) -> None:
        shell = self._shell()
        for command in ("rm -rf /", ["rm", "-rf", "/"], "mkfs /dev/sda", ":(){ :|:& };:"):
            _refuses(PermissionError, lambda command=command: shell.execute(command))

    def test_a_command_beyond_4096_characters_is_refused_with_both_numbers(self) -> None:
        shell = self._shell()
        assert shell.execute(["true", "x" * 4091]).success
        for command in ("true " + "x" * 4092, ["true", "x" * 4092]):
            error = _refuses(ValueError, lambda command=command: shell.execute(command))
            assert str(error) == "Command exceeds maximum length (4097 > 4096)"

    def test_an_empty_command_is_refused(self) -> None:
        shell = self._shell()
        for command in ("", "  ", [], [""], ["", "x"], "a\0b", ["a", "b\0"], "\ud800"):
            _refuses(ValueError, lambda command=command: shell.execute(command))

    # -- time --------------------------------------------------------------------------------------

    def test_a_timeout_keeps_what_was_printed_and_ends_the_whole_tree(self) -> None:
        shell = self._shell()
        mark = f"mark-{uuid.uuid4().hex}"
        result = shell.execute(f"echo part; (sleep 2; echo x > {mark}) & sleep 30", timeout_seconds=0.5)
        assert result.timed_out
        assert result.stdout == "part\n"
        assert result.stderr == "Command timed out after 0.5s"
        assert shell.execute(f"sleep 2; test -e {mark}").exit_code == 1

    def test_a_timeout_out_of_range_is_refused_naming_the_range(self) -> None:
        shell = self._shell()
        for seconds in (0, 0.09, -1, 601, float("nan"), float("inf")):
            error = _refuses(ValueError, lambda seconds=seconds: shell.execute("true", timeout_seconds=seconds))
            assert "0.1" in str(error)
            assert "600" in str(error)
        assert shell.execute("true", timeout_seconds=600).success

    # -- output ------------------------------------------------------------------------------------

    def test_output_not_wanted_is_empty(self) -> None:
        shell = self._shell()
        result = shell.execute("echo out; echo err >&2; exit 2", capture_output=False)
        assert (result.exit_code, result.stdout, result.stderr, result.truncated) == (2, "", "", False)
        late = shell.execute("echo out; sleep 10", timeout_seconds=0.3, capture_output=False)
        assert (late.timed_out, late.stdout, late.stderr) == (True, "", "")

    def test_long_output_keeps_its_head_and_its_tail_within_32_kib(self) -> None:
        result = self._shell().execute("echo first; yes middle | head -n 20000; echo last")
        assert result.truncated
        assert result.stdout.startswith("first\n")
        assert result.stdout.endswith("last\n")
        assert 0.9 * LIMIT < len(result.stdout.encode()) <= LIMIT

    def test_each_stream_is_sure_of_half(self) -> None:
        shell = self._shell()
        both = shell.execute("yes out | head -n 20000; yes err | head -n 20000 >&2")
        assert both.truncated
        for text in (both.stdout, both.stderr):
            assert 0.9 * LIMIT / 2 < len(text.encode()) <= LIMIT / 2
        one = shell.execute("echo little; yes err | head -n 20000 >&2")
        assert one.truncated
        assert one.stdout == "little\n"
        assert 0.9 * LIMIT < len(one.stderr.encode()) <= LIMIT - len("little\n")

    def test_output_within_the_bound_is_whole(self) -> None:
        result = self._shell().execute("head -c 20000 /dev/zero | tr '\\0' a; printf %012768d 0 >&2")
        assert not result.truncated
        assert (len(result.stdout), len(result.stderr)) == (20000, 12768)

    def test_no_character_is_cut_in_two(self) -> None:
        result = self._shell().execute("echo -n a; yes ä | tr -d '\\n' | head -c 80000")
        assert result.truncated
        assert re.fullmatch(r"aä+\n\[[^\]]*\]\nä+", result.stdout)

    def test_bytes_that_are_no_text_become_replacement_characters(self) -> None:
        result = self._shell().execute("printf 'a\\xffb\\x00\\x1b[1m'")
        assert result.stdout == "a\ufffdb\x00\x1b[1m"
        noise = self._shell().execute("head -c 32768 /dev/zero | tr '\\0' '\\377'")
        assert noise.truncated
        assert len(noise.stdout.encode()) <= LIMIT
        assert noise.stdout.startswith("\ufffd\ufffd")

    # -- input and environment ---------------------------------------------------------------------

    def test_input_is_read_and_then_at_its_end(self) -> None:
        shell = self._shell()
        assert shell.execute(["cat"], stdin="a\nü").stdout == "a\nü"
        assert shell.execute(["cat"]).stdout == ""
        assert shell.execute(["wc", "-c"], stdin="x" * 65536).stdout.strip() == "65536"
        _refuses(ValueError, lambda: shell.execute(["cat"], stdin="x" * 65537))

    def test_an_environment_is_extended_or_replaced(self) -> None:
        shell = self._shell()
        base = shell.env().to_dict()
        extended = _variables(shell.execute(["env"], env={"MINE": "a b"}).stdout)
        assert extended.items() >= {**base, "MINE": "a b"}.items()
        replaced = _variables(shell.execute(["env"], env={"MINE": "1"}, env_mode="replace").stdout)
        made_by_bash = {"PWD", "SHLVL", "_", "OLDPWD", "SHELLBACK_SESSION"}
        assert replaced.keys() - made_by_bash == {"PATH", "MINE"}
        assert replaced["PATH"] == base["PATH"]

    def test_an_environment_has_bounds(self) -> None:
        shell = self._shell()
        assert shell.execute("true", env={f"V{number}": "x" for number in range(256)}).success
        many = {f"V{number}": "x" for number in range(257)}
        refused: tuple[dict[str, str], ...] = (many, {"A-B": "x"}, {"A": "\0"}, {"LD_PRELOAD": "x"})
        for env in refused:
            _refuses(ValueError, partial(shell.execute, "true", env=env))

    # -- directories -------------------------------------------------------------------------------

    def test_a_directory_in_the_root_is_where_a_command_begins(self) -> None:
        shell = self._shell()
        name = f"sub-{uuid.uuid4().hex}"
        root = shell.execute(["pwd"]).stdout.strip()
        assert shell.execute(["mkdir", name]).cwd == root
        for given in (name, f"./{name}/", f"{root}/{name}"):
            result = shell.execute(["pwd"], cwd=given)
            assert result.stdout.strip() == result.cwd == f"{root}/{name}"

    def test_a_directory_outside_of_the_root_is_refused(self) -> None:
        shell = self._shell()
        name = f"link-{uuid.uuid4().hex}"
        assert shell.execute(["ln", "-s", "/etc", name]).success
        root = shell.execute(["pwd"]).stdout.strip()
        siblings = ("/tmp-evil", f"../{root.rpartition('/')[2]}-evil")  # noqa: S108 - beside what may be allowed
        for given in ("/etc", "..", f"{root}/../../../../../etc", *siblings, name, f"{root}/{name}"):
            error = _refuses(ValueError, lambda given=given: shell.execute(["pwd"], cwd=given))
            assert str(error) == f"Working directory escapes root: {given}"
        _refuses(ValueError, lambda: shell.execute(["pwd"], cwd="not-there"))
        _refuses(ValueError, lambda: shell.execute(["pwd"], cwd="a\0b"))

    # -- scripts -----------------------------------------------------------------------------------

    def test_a_script_runs_as_a_file_of_which_nothing_is_left(self) -> None:
        shell = self._shell()
        mark = uuid.uuid4().hex
        script = f"# {mark}\nfor i in 1 2; do\n  echo \"$i 'q'\"\ndone\nread x || echo end\npwd\nexit 5\n"
        result = shell.execute_script(script)
        assert (result.exit_code, result.stdout) == (5, f"1 'q'\n2 'q'\nend\n{result.cwd}\n")
        left = shell.execute(f"grep -lse {mark[:16]}'{mark[16:]}' ./* /tmp/* /var/tmp/* /dev/shm/*")
        assert (left.stdout, left.timed_out) == ("", False)

    def test_a_script_may_be_for_any_interpreter_and_as_long_as_a_mebibyte(self) -> None:
        shell = self._shell()
        head = "echo one\n"
        result = shell.execute_script(head + "#" * (1024 * 1024 - len(head) - 6) + "\ntrue\n", interpreter="/bin/sh")
        assert (result.exit_code, result.stdout) == (0, "one\n")
        _refuses(ValueError, lambda: shell.execute_script("#" * (1024 * 1024 + 1)))

    def test_a_script_that_cannot_be_run_is_refused(self) -> None:
        shell = self._shell()
        bad = (("", "/bin/bash"), (" \n", "/bin/bash"), ("true", "bash"), ("true", "/not/there"))
        for script, interpreter in (*bad, ("true", "../" * 40 + "bin/bash")):
            _refuses(
                ValueError,
                lambda script=script, interpreter=interpreter: shell.execute_script(script, interpreter=interpreter),
            )
        _refuses(PermissionError, lambda: shell.execute_script("true\nrm -rf /\n"))

    def test_a_script_is_bound_as_a_command_is(self) -> None:
        shell = self._shell()
        late = shell.execute_script("echo part\nsleep 10\n", timeout_seconds=0.5, env={"A": "1"})
        assert (late.timed_out, late.stdout, late.stderr) == (True, "part\n", "Command timed out after 0.5s")
        quiet = shell.execute_script("echo x; exit 3", capture_output=False)
        assert (quiet.exit_code, quiet.stdout) == (3, "")
        assert shell.execute_script('echo "$MINE"', env={"MINE": "v"}, env_mode="replace").stdout == "v\n"

    # -- looking -----------------------------------------------------------------------------------

    def test_a_program_is_found_where_commands_run(self) -> None:
        shell = self._shell()
        found = shell.which("sh")
        assert found.found
        assert found.path is not None
        assert found.path.startswith("/")
        assert shell.execute([found.path, "-c", "echo yes"]).stdout == "yes\n"
        for name in ("nonexistent_command_12345", "", "a b", "cd", "-x", "$(id)", "rm -rf /", "\ud800", "./no/such"):
            missing = shell.which(name)
            assert (missing.command, missing.path, missing.found) == (name, None, False)

    def test_the_environment_is_what_a_command_gets(self) -> None:
        shell = self._shell()
        snapshot = shell.env()
        assert snapshot.cwd == shell.execute(["pwd"]).stdout.strip()
        assert _variables(shell.execute(["env"]).stdout).items() >= snapshot.to_dict().items()
        assert snapshot.get("PATH")
        assert snapshot.get("NOT_THERE", "else") == "else"
        assert shell.execute([snapshot.shell, "-c", "echo yes"]).stdout == "yes\n"

    # -- threads -----------------------------------------------------------------------------------

    def test_many_threads_may_use_one_shell(self) -> None:
        shell = self._shell("threads")
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            calls = [pool.submit(shell.execute, ["echo", str(number)]) for number in range(24)]
        assert [call.result().stdout for call in calls] == [f"{number}\n" for number in range(24)]


def _refuses(kind: type[Exception], call: object) -> Exception:
    assert callable(call)
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def _variables(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
