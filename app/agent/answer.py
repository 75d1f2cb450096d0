"""The text that a person reads for what an agent put out."""

from __future__ import annotations

from typing import Any, Final

from pydantic import TypeAdapter

_ANY: Final[TypeAdapter[Any]] = TypeAdapter(Any)


def answer_text(output: object) -> str:
    """Text as it is; anything with a structure as JSON."""
    return output if isinstance(output, str) else _ANY.dump_json(output, indent=2, fallback=str).decode()
