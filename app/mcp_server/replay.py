"""Answers of the SDK that depend on nothing but the program and its settings, kept for the next start.

The SDK answers the same request later all the same; its answer is not sent, and replaces a kept one that differs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

FILE: Final = "mcp-answers.json"
METHODS: Final = ("initialize", "server/discover", "tools/list")
BASES: Final = 16
"""Kept for so many kinds of programs and settings."""
REQUESTS: Final = 8
"""Only so many of the first messages are looked at."""
LONGEST: Final = 65_536
_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
_PACKAGE: Final = Path(__file__).parent.parent


class Replay:
    """The kept answers for one connection."""

    def __init__(self, home: Path, basis: str) -> None:
        self._path = home / FILE
        self._basis = _digest(basis)
        self._kept: dict[str, Any] = self._read().get(self._basis, {})
        self._version = ""
        self._asked: dict[str, tuple[str, bool]] = {}
        """What each request asks, and whether it was answered."""
        self._left = REQUESTS

    @property
    def open(self) -> bool:
        """Whether an answer is expected that was kept, or can be."""
        return bool(self._asked)

    def answer(self, line: str) -> str | None:
        """The kept answer to this message of the client; None without one."""
        if self._left <= 0 or len(line) > LONGEST:
            return None
        self._left -= 1
        with contextlib.suppress(ValueError, TypeError, AttributeError, KeyError, RecursionError):
            message: Any = json.loads(line)
            method: str = message["method"]
            params: Any = message.get("params") or {}
            meta: Any = params.get("_meta") or {}
            if method not in METHODS or not isinstance(message["id"], int | str) or params.get("cursor"):
                return None
            said: object = params.get("protocolVersion") or meta.get(_VERSION)
            self._version = str(said or self._version)
            asked = f"{method} {self._version}"
            known = self._kept.get(asked)
            self._asked[json.dumps(message["id"])] = (asked, known is not None)
            if known is not None:
                return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": known}) + "\n"
        return None

    def is_new(self, text: str) -> bool:
        """Whether the client has not had this answer; keeps it for the next start."""
        message = json.loads(text)
        asked, answered = self._asked.pop(json.dumps(message.get("id")), ("", False))
        result = message.get("result")
        if asked and result is not None and result != self._kept.get(asked):
            self._kept[asked] = result
            self._keep()
        return not answered

    def _keep(self) -> None:
        # A failure is no loss: the next start takes longer.
        with contextlib.suppress(OSError):
            others = {basis: kept for basis, kept in self._read().items() if basis != self._basis}
            whole = dict([*others.items(), (self._basis, self._kept)][-BASES:])
            draft = self._path.with_name(f".{FILE}.{os.getpid()}")
            draft.write_text(json.dumps(whole))
            draft.replace(self._path)

    def _read(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError, TypeError):
            found: Any = json.loads(self._path.read_bytes())
            return dict(found)
        return {}


def _digest(basis: str) -> str:
    """Changes with everything that the answers are made from."""
    sources = (*(_PACKAGE / "exec/tools").rglob("*.py"), *(_PACKAGE / "mcp_server").glob("*.py"))
    made_from = [basis, *sorted((str(path), path.stat().st_mtime_ns) for path in sources)]
    for name in ("shellback", "mcp", "pydantic-ai-slim", "pydantic"):
        with contextlib.suppress(PackageNotFoundError):
            made_from.append(version(name))
    return hashlib.sha256(json.dumps(made_from).encode()).hexdigest()
