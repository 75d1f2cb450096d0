"""`python -m tests.shapes`: writes docs/json.md from the types of what commands print with `--json`.

`strict` is the schema of a command that allows nothing else.
"""

from __future__ import annotations

import enum
import textwrap
import types
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Final, Literal, NewType, Union, get_args, get_origin

from shellback.cli.shapes import SHAPES, Asked, fields_of

PAGE: Final = Path(__file__).parents[1] / "docs/json.md"
HEAD: Final = """\
# JSON of the commands

`--json` prints facts instead of text: one document on one line, in printable ASCII, and nothing else on standard
output. Texts of agents and processes are as they are, so escape them before you show them; `shown` is already
escaped. What goes wrong is told on standard error, and the [exit code](operations.md#exit-codes) says the outcome.
`python -m tests.shapes` writes this page from `shellback.cli.shapes`, and a test compares both with what the
commands print. Fields may be added; none changes its meaning.

With `--watch`, each line is a row of the list without `data_age_s`, and with `change`: `new`, `changed` or `gone`.

Times (`..._at`, `at`, `since`) are seconds since 1970. A field marked `?` is there only if it applies.

`-o FIELDS` shows fields of a list by these names instead of the usual columns, in their order; `end.exit_code` is a
field within another. With `--json` it prints a list of objects with only these fields.

```sh
shellback ps --all -o id,state,end.exit_code,command
shellback ps --all -o id --json
```

```text
ID  STATE  END.EXIT_CODE  COMMAND
[]
```

"""
OPEN: Final[tuple[Any, ...]] = (Asked,)
"""Those that have other fields too."""
_PLAIN: Final = {str: "text", int: "integer", float: "number", bool: "boolean", type(None): "null", Any: "any"}


def document() -> str:
    """The page."""
    known: dict[str, Any] = {}
    rows = [
        f"| `{command}` | {_said(shape.of, known)}{', one on each line' if shape.lines else ''} |\n"
        for command, shape in SHAPES.items()
    ]
    parts: list[str] = []
    done: set[str] = set()
    while left := sorted(known.keys() - done):
        for name in left:
            done.add(name)
            listed = "; ".join(
                f"`{one.name}`{'' if one.always else '?'} {_said(one.type, known)}" for one in fields_of(known[name])
            )
            about = " ".join(line.strip() for line in (known[name].__doc__ or "").strip().splitlines())
            parts.append(f"### {name}\n\n{_wrapped(about)}\n\n{_wrapped(listed)}.\n")
    table = "| command | prints |\n|---|---|\n" + "".join(rows)
    return f"{HEAD}## What each command prints\n\n{table}\n## The objects\n\n" + "\n".join(sorted(parts))


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 130, break_long_words=False, break_on_hyphens=False)


def _said(of: Any, known: dict[str, Any]) -> str:
    """A type in words; dataclasses are noted in `known`."""
    of = of.__supertype__ if isinstance(of, NewType) else of
    inner = [_said(one, known) for one in get_args(of) if one is not Ellipsis] if get_origin(of) is not Literal else []
    if of in _PLAIN:
        return _PLAIN[of]
    if is_dataclass(of):
        name = str(getattr(of, "__name__", ""))
        assert known.setdefault(name, of) is of, f"two objects are named {name}"
        return f"[{name}](#{name.lower()})"
    if get_origin(of) is Literal or (isinstance(of, type) and issubclass(of, enum.Enum)):
        values = get_args(of) or [one.value for one in of]
        return " or ".join(f"`{value}`" for value in values)
    if get_origin(of) in {Union, types.UnionType}:
        return " or ".join(inner)
    if get_origin(of) in {list, tuple}:
        return f"list of {inner[0]}"
    assert get_origin(of) is dict, of
    return f"object of {inner[1]}"


def strict(command: str) -> dict[str, Any]:
    """The JSON schema of what a command prints, that requires its fields and allows no others."""
    return _schema(SHAPES[command].of)


def _schema(of: Any) -> dict[str, Any]:
    of = of.__supertype__ if isinstance(of, NewType) else of
    if of is Any:
        return {}
    if of in _PLAIN:
        return {"type": {"text": "string", "any": ""}.get(_PLAIN[of], _PLAIN[of])}
    if is_dataclass(of):
        fields = fields_of(of)
        return {
            "type": "object",
            "properties": {one.name: _schema(one.type) for one in fields},
            "required": [one.name for one in fields if one.always],
            "additionalProperties": of in OPEN,
        }
    if get_origin(of) is Literal or (isinstance(of, type) and issubclass(of, enum.Enum)):
        return {"enum": list(get_args(of)) or [one.value for one in of]}
    inner = [_schema(one) for one in get_args(of) if one is not Ellipsis]
    if get_origin(of) in {Union, types.UnionType}:
        return {"anyOf": inner}
    if get_origin(of) in {list, tuple}:
        return {"type": "array", "items": inner[0]}
    return {"type": "object", "additionalProperties": inner[1]}


if __name__ == "__main__":
    PAGE.write_text(document(), encoding="utf-8")
