"""Keys on their way to a process, but for the one that leaves."""

from __future__ import annotations

from typing import Final

TWICE_S: Final = 0.5
"""How soon the second press has to come for the key to be sent."""


class Keystrokes:
    """Finds the key that leaves in what is typed. It leaves unless it comes again at once; then it is sent, once."""

    def __init__(self, key: int) -> None:
        self._key = key
        self.pressed = False
        """Whether the key was the last thing typed: it leaves in a moment."""

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """What of `data` is to be sent, and whether the person leaves; what follows the key then is for nobody."""
        sent = bytearray()
        for byte in data:
            if self.pressed and byte != self._key:
                return bytes(sent), True
            if byte != self._key or self.pressed:
                sent.append(byte)
                self.pressed = False
            else:
                self.pressed = True
        return bytes(sent), False


def shown(key: int) -> str:
    """The key as people write it."""
    return f"C-{chr(key + ord('@')).lower()}"
