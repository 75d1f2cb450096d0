"""A second text that a shell is given once its output asks for it, and what it prints until it says that it is done.

The client names what to expect; nothing is decided here. If the output is not exactly that, nothing is written, and the
client, which is sent the output, decides.
"""

from __future__ import annotations

import base64
from typing import Final

from shellback.exec.supervisor.process.job import Job
from shellback.exec.wire import crashpoints
from shellback.exec.wire.fields import Message, Refused, bytes_of, field_of

MOST: Final = 1 << 16
"""Bytes of output; with more, the client is answered and reads the log."""
_BELL: Final = b"\x07"


class Handing:
    """The `then` of a write: after the output `asks` + `says` + BEL, `data` is written with `key`, once.

    It is fulfilled when `done` and a later BEL are printed, when `asks` is followed by anything else, or by MOST bytes.
    `told` is part of the answer: whether `data` was `given`, and without holes in the log the output from `at` on. A
    client that goes away or withdraws its request before that has nothing written.
    """

    def __init__(self, message: Message, job: Job) -> None:
        self._asks, self._says, self._data, self._done = (
            bytes_of(message.get(name, "")) for name in ("asks", "says", "data", "done")
        )
        self._key = field_of(message, "key", str)
        if not (self._asks and self._done and self._key):
            raise Refused("bad_request", "then lacks what to expect, or a key")
        self._job = job
        self._log = job.logs[0]
        self._at = self._log.size
        self._printed = b""
        self.told: Message = {"given": False}

    def fulfilled(self) -> bool:
        """Look at the output that has come, and write if it asks; whether the client is to be answered."""
        at = self._at + len(self._printed)
        whole = not self._log.holes and self._log.size - self._at <= MOST
        self._printed += self._log.read(at, self._log.size) if whole else b""
        over = not whole or self._has_come()
        if over and whole:
            self.told |= {"at": self._at, "printed": base64.b64encode(self._printed).decode()}
        return over

    def _has_come(self) -> bool:
        if not self.told["given"]:
            if (self._asks + self._says + _BELL) not in self._printed:
                place = self._printed.find(self._asks)
                return place >= 0 and _BELL in self._printed[place:]
            if self._job.input is None:
                return True
            crashpoints.reach("supervisor.asked_for")
            try:
                self._job.input.write(self._data, eof=False, key=self._key, told=lambda _outcome: None)
            except Refused:
                return True  # the client writes it, and is refused
            self.told["given"] = True
            crashpoints.reach("supervisor.handed")
        place = self._printed.find(self._done)
        return place >= 0 and _BELL in self._printed[place:]
