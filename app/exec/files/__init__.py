"""The files of a workspace: reached as commands would reach them, by paths that cannot lead out.

`Files` is the way in; `place` has the reasons why nothing gets out. Names load when they are first used: the process
that searches in files needs few of them, and is started for each search.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shellback.exec.files.contents import READ_MOST
    from shellback.exec.files.entries import Entry
    from shellback.exec.files.errors import BinaryFile, FileTooLarge, TextAbsent, TextNotUnique
    from shellback.exec.files.files import Check, Files
    from shellback.exec.files.grep import Hit, Hits
    from shellback.exec.files.protection import Protection
    from shellback.exec.files.search import Found
    from shellback.exec.files.text import Edited, Text

__all__ = (
    "READ_MOST",
    "BinaryFile",
    "Check",
    "Edited",
    "Entry",
    "FileTooLarge",
    "Files",
    "Found",
    "Hit",
    "Hits",
    "Protection",
    "Text",
    "TextAbsent",
    "TextNotUnique",
)

_MODULES = {
    "READ_MOST": "contents",
    "BinaryFile": "errors",
    "Check": "files",
    "Edited": "text",
    "Entry": "entries",
    "FileTooLarge": "errors",
    "Files": "files",
    "Found": "search",
    "Hit": "grep",
    "Hits": "grep",
    "Protection": "protection",
    "Text": "text",
    "TextAbsent": "errors",
    "TextNotUnique": "errors",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
