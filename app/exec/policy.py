"""Who may do what: the one table of tools, the digest of a proposal, and the grant that starting needs.

Only this module makes a grant. It binds the digest of everything that will run, so a grant for one
proposal starts nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, NamedTuple, Protocol, final

from app.exec.errors import CommandDenied


class ToolRule(NamedTuple):
    """What one tool is and whether a person is asked first."""

    category: Literal["exec", "process"]
    approval: Literal["pass", "ask"]


TOOLS: Final[Mapping[str, ToolRule]] = {
    "execute": ToolRule("exec", "ask"),
    "execute_pty": ToolRule("exec", "ask"),
    "process_list": ToolRule("process", "pass"),
    "process_poll": ToolRule("process", "pass"),
    "process_log": ToolRule("process", "pass"),
    "process_write": ToolRule("process", "ask"),
    "process_send_keys": ToolRule("process", "ask"),
    "process_kill": ToolRule("process", "ask"),
}


def asks(tool: str) -> bool:
    """Whether a call of this tool waits for a person; a tool that is not in the table does."""
    rule = TOOLS.get(tool)
    return rule is None or rule.approval == "ask"


def metadata_of(tool: str) -> dict[str, str]:
    """What observers and other toolsets are told about a tool of the table."""
    return {"category": TOOLS[tool].category}


@final
@dataclass(frozen=True)
class Proposal:
    """What one call would do. `facts` holds all that decides what runs, as portable JSON."""

    tool: str
    facts: Mapping[str, object]

    @cached_property
    def digest(self) -> str:
        """Names exactly this proposal; differs when anything that would run differs."""
        whole = json.dumps([self.tool, self.facts], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(whole.encode("ascii")).hexdigest()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What policy says to a proposal, and why; recorded before it is acted on."""

    decision: Literal["allow", "ask", "deny"]
    reason: str


@dataclass(frozen=True, slots=True)
class Approval:
    """A person's yes to one digest; None binds whatever that call proposes now (bare use)."""

    id: str | None = None
    digest: str | None = None


class Policy(Protocol):
    """Judges proposals. The caller records the verdict, so that a repeat of the call gets the same."""

    async def judge(self, proposal: Proposal) -> Verdict:
        """Say whether the proposal may run, must be asked for, or is refused. Cancelling changes nothing."""
        ...


class TablePolicy:
    """The policy of the table: what passes there is allowed, all else is asked for."""

    async def judge(self, proposal: Proposal) -> Verdict:
        """Allow the tools that pass, ask for the others."""
        if asks(proposal.tool):
            return Verdict("ask", f"{proposal.tool} changes something")
        return Verdict("allow", f"{proposal.tool} only reads")


_MAKER: Final = object()


@final
class Grant:
    """Proof that policy lets one proposal run. There is no public constructor."""

    __slots__ = ("approval_id", "digest", "reason")

    def __init__(self, maker: object, digest: str, reason: str, approval_id: str | None) -> None:
        if maker is not _MAKER:
            raise TypeError("only policy makes a Grant; use grant() or grant_by_operator()")
        self.digest = digest
        self.reason = reason
        self.approval_id = approval_id

    def covers(self, proposal: Proposal) -> bool:
        """Whether it was made for exactly this proposal."""
        return self.digest == proposal.digest


def grant(proposal: Proposal, verdict: Verdict, approval: Approval | None) -> Grant | None:
    """Turn a verdict, and the approval if there is one, into a grant; None while a person has to be asked.

    Raises:
        CommandDenied: Policy refuses it, or what would run is not what was approved.
    """
    if verdict.decision == "deny":
        raise CommandDenied(f"refused by policy: {verdict.reason}")
    if verdict.decision == "allow":
        return Grant(_MAKER, proposal.digest, verdict.reason, None)
    if approval is None:
        return None
    if approval.digest is not None and approval.digest != proposal.digest:
        raise CommandDenied(
            "what would run now is not what was approved (directory, session or settings changed meanwhile); "
            "nothing was started, propose the call again"
        )
    return Grant(_MAKER, proposal.digest, "approved", approval.id)


def grant_by_operator(proposal: Proposal, reason: str) -> Grant:
    """Grant what the operator's own code or command line asks for; never for what a model proposed."""
    return Grant(_MAKER, proposal.digest, f"operator: {reason}", None)
