"""Who asks: for the audit, and for what may be seen."""

from __future__ import annotations

import getpass
import os
from collections.abc import Collection
from dataclasses import dataclass


def me() -> str:
    """The name of the user of this program."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        return f"uid {os.geteuid()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """`by` is in the audit and in events. `conversations` are all that it may see and change; None: all there are.

    `token`: it came over HTTP with a token. `surface` is by what it asks, for the audit.
    """

    by: str
    conversations: Collection[str] | None = None
    token: bool = False
    surface: str = "client"

    def may(self, conversation: str) -> bool:
        """Whether it may see and change this conversation. To others it does not exist."""
        return self.conversations is None or conversation in self.conversations
