"""A policy that a test decides."""

from __future__ import annotations

from dataclasses import dataclass, field

from shellback.exec.core.errors import ExecError
from shellback.exec.policy.policy import Asked, Verdict, Withheld


@dataclass
class Says:
    """A policy that says what it is told to, and keeps what it is told of refusals."""

    verdict: Verdict
    told: list[str] = field(default_factory=list[str])
    asking: str = ""

    async def judge(self, asked: Asked) -> Verdict:
        return self.verdict

    async def withheld(self, conversation_id: str) -> Withheld:
        return lambda _: None

    async def refused(self, asked: Asked, why: ExecError) -> None:
        self.told.append(str(why))
