"""Proposals, verdicts and grants. A command starts only with a grant.

Only this module makes a grant. It is bound to the digest of everything that will run, so it starts nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, Protocol, final

from shellback.exec.core.errors import CommandDenied, ExecError
from shellback.exec.core.model import WORK, CommandSpec
from shellback.exec.policy.tools import ASKING, Tool

TABLE: Final = "table"
"""The `by` of a verdict that neither a rule nor the classification decided."""


@final
@dataclass(frozen=True)
class Proposal:
    """What one call would do: `facts` determine what runs, as JSON; `spec` is the command, if the engine starts one."""

    tool: str
    facts: Mapping[str, object]
    spec: CommandSpec | None = None

    @cached_property
    def digest(self) -> str:
        """SHA-256 over tool and facts; it differs if anything that would run differs."""
        whole = json.dumps([self.tool, self.facts], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(whole.encode("ascii")).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A call that policy judges; `spec` is the command that it would start.

    `tool` is the name that was called, `act` the tool that the call amounts to. `call_key` is empty if the call is only
    displayed. A file tool has `words`, the call as rules read it, and `files`, absolute and without symlinks. A call
    that types has `typed`, `unfinished` (the typed part of an unfinished line, None if unknown), and `shell`: whether a
    shell may read it.
    """

    tool: str
    act: Tool = ASKING
    call_key: str = ""
    conversation_id: str = ""
    spec: CommandSpec | None = None
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    words: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    typed: str | None = None
    unfinished: str | None = ""
    shell: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The decision of policy on a call, and the reason.

    An allowed command runs in `profile`; in the background, without a timeout of its own, for at most `timeout_s` (0:
    no bound). `by` is the table, the classifier, a rule, or a standing approval (`approval_id`). `shown` is displayed
    to a person: tier, reason, segments, files. A refusal may have its own `error`.
    """

    decision: Literal["allow", "ask", "deny"]
    reason: str
    by: str = TABLE
    profile: str = WORK
    timeout_s: float = 0.0
    rule_ids: tuple[str, ...] = ()
    approval_id: str | None = None
    shown: Mapping[str, Any] = field(default_factory=dict[str, Any])
    error: ExecError | None = None


def unattended(spec: CommandSpec, verdict: Verdict) -> CommandSpec:
    """The command as it runs without an approval: in the verdict's profile and time bound."""
    seconds = spec.timeout_s or (verdict.timeout_s if spec.background else 0.0)
    return replace(spec, profile=verdict.profile, timeout_s=seconds)


@dataclass(frozen=True, slots=True)
class Approval:
    """A person's approval of one digest. Digest None (use without a queue) covers whatever the call proposes now."""

    id: str | None = None
    digest: str | None = None


Withheld = Callable[[Path], str | None]
"""The reason why calls without an approval cannot read a file (absolute, no symlinks); None if they can."""


class Policy(Protocol):
    """Judges calls. The claim of a call records its grant, so a replayed call is not judged anew."""

    @property
    def asking(self) -> str:
        """One sentence for the model: which commands need an approval."""
        ...

    async def judge(self, asked: Asked) -> Verdict:
        """Allow the call, ask a person, or deny it. Cancelling changes nothing."""
        ...

    async def withheld(self, conversation_id: str) -> Withheld:
        """The test for files that need an approval to be read; searches leave these files out."""
        ...

    async def refused(self, asked: Asked, why: ExecError) -> None:
        """Record that the call was refused: by policy, or because it differs from what was approved."""
        ...


_MAKER: Final = object()


@final
class Grant:
    """Proof that policy allows one proposal. Only this module can construct one."""

    __slots__ = ("approval_id", "by", "proposal", "reason", "rule_ids")

    def __init__(self, maker: object, proposal: Proposal, reason: str, by: str, allowed: Verdict | None = None) -> None:
        if maker is not _MAKER:
            raise TypeError("only policy makes a Grant; use grant() or grant_by_operator()")
        self.proposal = proposal
        self.reason = reason
        self.by = by
        self.approval_id = allowed.approval_id if allowed else None
        self.rule_ids = allowed.rule_ids if allowed else ()

    @property
    def digest(self) -> str:
        """The digest of what may run."""
        return self.proposal.digest

    @property
    def spec(self) -> CommandSpec:
        """The command that may be started."""
        if self.proposal.spec is None:
            raise CommandDenied("this was granted for something else than a command; nothing was started")
        return self.proposal.spec

    def covers(self, proposal: Proposal) -> bool:
        """Whether it was made for exactly this proposal."""
        return self.digest == proposal.digest


def grant(proposal: Proposal, verdict: Verdict, approval: Approval | None) -> Grant | None:
    """The grant for a verdict and an approval; None if an approval is needed and missing.

    Raises:
        CommandDenied: Policy denies the call, or what would run differs from what was approved.
    """
    if verdict.decision == "deny":
        raise verdict.error or CommandDenied(f"refused by policy: {verdict.reason}")
    if approval is None:
        if verdict.decision == "ask":
            return None
        return Grant(_MAKER, proposal, verdict.reason, verdict.by, verdict)
    if approval.digest is not None and approval.digest != proposal.digest:
        raise CommandDenied(
            "what would run now is not what was approved (directory, scripts, settings or version changed meanwhile); "
            "nothing was started, propose the call again"
        )
    yes = Verdict(decision="allow", reason="approved", by="approval", approval_id=approval.id)
    return Grant(_MAKER, proposal, yes.reason, yes.by, yes)


def grant_again(proposal: Proposal, before: str) -> Grant | None:
    """The grant of a replayed call that has claimed its session: only for the digest that was granted `before`."""
    return Grant(_MAKER, proposal, "granted before", "before") if proposal.digest == before else None


def grant_by_operator(proposal: Proposal, reason: str) -> Grant:
    """A grant for the operator's own code or command line; never for a proposal of a model."""
    return Grant(_MAKER, proposal, f"operator: {reason}", "operator")
