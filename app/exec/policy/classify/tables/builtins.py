"""Commands that the shell carries out itself, as far as they leave its variables, its options and the files alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from shellback.exec.policy.classify.model import Asks
from shellback.exec.policy.classify.options import COUNTED, Argument, Call, Judge, Kind, Program, is_number, program

_DIRECTIVE: Final = re.compile(r"%[-+ #0'*.0-9hlqjzLt]*(?:\([^()%]*\))?(.?)", re.DOTALL)
_CONVERSIONS: Final = frozenset("diouxXeEfFgGaAcsbQT%")

_FILE_TESTS: Final = frozenset(f"-{letter}" for letter in "abcdefghkprsuwxGLNOS")
_TEXT_TESTS: Final = frozenset({"-n", "-z"})
_COMPARES_TEXT: Final = frozenset({"=", "==", "!=", "<", ">"})
_COMPARES_NUMBERS: Final = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})
_COMPARES_FILES: Final = frozenset({"-nt", "-ot", "-ef"})


def _printf(call: Call) -> None:
    """Not `-v`, which evaluates subscripts; nor `%n`, which sets a variable."""
    arguments = call.arguments[1:] if call.arguments[:1] == (Argument("--"),) else call.arguments
    if not arguments or arguments[0].matched or arguments[0].text.startswith("-"):
        raise Asks("printf may set a variable")
    if any(found[1] not in _CONVERSIONS for found in _DIRECTIVE.finditer(arguments[0].text)):
        raise Asks("printf's format may set a variable")


def _test(call: Call) -> None:
    """A closed list of tests; not `-v` and `-R`, which evaluate subscripts of quoted words."""
    texts = [argument.text for argument in call.arguments]
    if any(argument.several for argument in call.arguments):
        raise Asks(f"{call.name} takes what a pattern matches, which may be other things when it runs")
    if call.name != "test" and (not texts or texts.pop() != call.name.replace("[", "]")):
        raise Asks(f"{call.name} is not closed")
    if any(argument.open is not None for argument in call.arguments):
        _open_test(call, texts)
        return
    while texts:
        _one_test(call, texts)
        if texts and texts.pop(0) not in {"-a", "-o"}:
            raise Asks("a test is put together in a way that is not known")


def _open_test(call: Call, texts: list[str]) -> None:
    """One test of text, which is the same test whatever the text is; or of two numbers."""
    if texts[:1] == ["!"]:
        del texts[0]
    match texts:
        case [_]:
            return
        case [test, _] if test in _TEXT_TESTS:
            return
        case [_, compares, _] if compares in _COMPARES_TEXT:
            return
        case [left, compares, right] if compares in _COMPARES_NUMBERS and call.name != "[[":
            if all(is_number(text) or (COUNTED in call.arguments and text == COUNTED.text) for text in (left, right)):
                return
        case _:
            pass
    raise Asks(f"{call.name} takes what is known only when it runs")


def _one_test(call: Call, texts: list[str]) -> None:
    while texts[:1] == ["!"] and len(texts) > 1:
        del texts[0]
    if len(texts) >= 3 and texts[1] in _COMPARES_TEXT | _COMPARES_NUMBERS | _COMPARES_FILES:
        left, operator, right = texts[:3]
        del texts[:3]
        if operator in _COMPARES_NUMBERS and not (is_number(left) and is_number(right)):
            raise Asks("a comparison of numbers is given what is no number")
        if operator in _COMPARES_FILES:
            call.files.look(left)
            call.files.look(right)
    elif len(texts) >= 2 and texts[0] in _FILE_TESTS | _TEXT_TESTS:
        if texts[0] in _FILE_TESTS:
            call.files.look(texts[1])
        del texts[:2]
    elif len(texts) >= 2 and texts[0] == "-t" and texts[1].isdecimal():
        del texts[:2]
    elif len(texts) == 1 or (len(texts) > 1 and texts[1] in {"-a", "-o"}):
        del texts[0]
    else:
        raise Asks(f"the test {texts[0]} is not known to only read")


def _command(call: Call) -> None:
    """`command -v NAME` tells what a name is; without it, it runs that."""
    if call.arguments and not call.arguments[0].text.startswith("-"):
        call.run(call.arguments, fed=True)
    elif call.texts[:1] not in {("-v",), ("-V",)} or any(text.startswith("-") for text in call.texts[1:]):
        raise Asks("command runs what follows")


def _cd(call: Call) -> None:
    """One directory, named in full, so that it is known where the commands after it run."""
    texts = [text for text in call.texts if text not in {"-L", "-P", "--"}]
    if len(texts) != 1 or texts[0].startswith("-"):
        raise Asks("cd does not name the directory")
    call.files.enter(texts[0])


def _set(call: Call) -> None:
    """Only what ends a script early."""
    if not re.fullmatch(r"-[eu]+|-[eu]*o pipefail", " ".join(call.texts)):
        raise Asks("set shows or changes the shell's variables")


def _nothing(call: Call) -> None:
    if call.texts:
        raise Asks(f"{call.name} with arguments changes the shell")


def _level(call: Call) -> None:
    if call.arguments == (COUNTED,):
        return
    if len(call.texts) > 1 or not all(text.isdecimal() for text in call.texts):
        raise Asks(f"{call.name} takes one number")


def _ulimit(call: Call) -> None:
    if not all(re.fullmatch(r"-[SH]?[abcdefiklmnpqrstuvxPRT]", text) for text in call.texts):
        raise Asks("ulimit would change a limit")


BUILTINS: Final[Mapping[str, Program | Judge]] = {
    **dict.fromkeys(("echo", "true", "false", ":"), lambda _: None),  # whatever they are given is only shown
    "printf": _printf,
    "test": _test,
    "[": _test,
    "[[": _test,
    "pwd": program("-LP", most=0),
    "command": _command,
    "type": program("-afptP", operands=Kind.TEXT),
    "cd": _cd,
    "set": _set,
    **dict.fromkeys(("umask", "jobs", "times", "wait", "dirs"), _nothing),
    **dict.fromkeys(("exit", "break", "continue"), _level),
    "ulimit": _ulimit,
}
"""Those of bash. A file of the same name is never run."""
