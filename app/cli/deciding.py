"""A request at the prompt of a chat: its card, the letters that answer it, and what each does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from shellback.cli.approving import offered
from shellback.cli.cards import painted, wrapped
from shellback.cli.shared import columns
from shellback.client.deciding import Deciding, editable, edited
from shellback.exec.core.display import folded
from shellback.work.approvals import approvals
from shellback.work.approvals.approvals import Request, Scope
from shellback.work.approvals.showing import card, details

if TYPE_CHECKING:
    from shellback.exec.policy.rules.rule import Rule
    from shellback.wiring.wiring import Place
    from shellback.work.queue.queues import Enqueuer

SURFACE: Final = "chat"
LETTERS: Final = {
    "y": ("once", "runs exactly what is shown, once"),
    "a": ("for the session", "allows this and all further input, without asking, until the process ends"),
    "r": ("rule", "shows the rules that would allow exactly this from now on; nothing is saved before a second y"),
    "e": ("edit", "changes the call; the changed call is shown before it can run"),
    "n": ("no, with a reason", "denies it; text behind n is the reason that the agent is told"),
    "d": ("details", "shows parts, programs and scripts with hashes, mounts, limits and the digest"),
    "?": ("", "shows this"),
}
_OF_A_HOST: Final = (
    "for the conversation",
    "allows this and all further connections of this conversation to it, without asking",
)
SAVES: Final = "[y] saves these rules and runs this · [n] saves nothing"


@dataclass
class Asked:
    """A request that is shown, and how a person may answer it. A decision is about exactly what was shown."""

    where: Place
    enqueuer: Enqueuer
    request: Request
    by: str
    rules: Sequence[Rule] = ()
    """Rules that were shown and wait for their own y."""
    letters: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])

    def __post_init__(self) -> None:
        self.letters = dict(LETTERS)
        if approvals.why_not_for_session(self.request):
            del self.letters["a"]
        elif not self.request.of_call:
            self.letters["a"] = _OF_A_HOST
        if not self.request.of_call:
            del self.letters["e"]
            del self.letters["d"]

    def card(self) -> list[str]:
        """The lines to show before the question."""
        return painted(card(self.request))

    def question(self) -> str:
        """What may be typed, in rows that fit the terminal."""
        if self.rules:
            return SAVES
        return "\n".join(_packed([f"[{key}] {name}".rstrip() for key, (name, _) in self.letters.items()]))

    def told(self, letter: str) -> list[str]:
        """What `d` and `?` show."""
        if letter == "d":
            return folded(details(self.request), columns())
        return wrapped([f"{key}  {text}" for key, (_, text) in self.letters.items()]).split("\n")

    def offer(self) -> list[str]:
        """Make the rules for this request, and return the lines that show them; nothing is saved."""
        self.rules = self._deciding.rules(self.request)
        return folded(offered(self.rules), columns())

    def approve(self, scope: Scope = "once") -> list[str]:
        """Approve what was shown, and save the rules that were; what is told about it."""
        _, saved = self._deciding.approve(self.request.id, scope=scope, digest=self.request.digest, rules=self.rules)
        return [f"remembered as {rule.id}" for rule in saved]

    def deny(self, reason: str | None) -> None:
        """Deny what was shown."""
        how: dict[str, Any] = {"by": self.by, "surface": SURFACE, "note": reason, "digest": self.request.digest}
        approvals.settle(self.where.database, self.enqueuer, self.request.id, "denied", **how)

    def editable(self) -> str:
        """The text that a person changes: the command, or else all arguments as JSON."""
        return editable(self.request)

    def change(self, text: str) -> None:
        """Have a worker propose the call with the changed text; its proposal is asked about in place of this one."""
        self._deciding.propose(self.request, edited(self.request, text), digest=self.request.digest)

    @property
    def _deciding(self) -> Deciding:
        return Deciding(where=self.where, enqueuer=self.enqueuer, by=self.by, surface=SURFACE)


def _packed(parts: Sequence[str]) -> Iterator[str]:
    width, row = columns() or 80, ""
    for part in parts:
        if row and len(row) + len(part) + 3 > width:
            yield row
            row = ""
        row = f"{row} · {part}" if row else part
    yield row
