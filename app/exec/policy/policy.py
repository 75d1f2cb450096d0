"""Who may do what: the digest of a proposal, and the grant that starting needs.

Only this module makes a grant. It binds the digest of everything that will run, so a grant for one
proposal starts nothing else.
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
"""Who says what no rule and no classification does."""


@final
@dataclass(frozen=True)
class Proposal:
    """What one call would do. `facts` holds all that decides what runs, as portable JSON.

    `spec` is the command that they are of, where the engine is to start it.
    """

    tool: str
    facts: Mapping[str, object]
    spec: CommandSpec | None = None

    @cached_property
    def digest(self) -> str:
        """Names exactly this proposal; differs when anything that would run differs."""
        whole = json.dumps([self.tool, self.facts], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(whole.encode("ascii")).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A call that policy is asked about: whose it is, and the command that it would start, if it starts one.

    `tool` is the name of the tool that was called, `act` the tool that the call amounts to. `call_key` is empty where a
    call is only shown, and does not go on whatever is said. A tool for files has `words`: its call as rules read it,
    and `files`, what it is about: absolute, symlinks resolved. A call that types has `typed`, as a shell would read it,
    `unfinished`, what was typed before and not ended (None where nobody can tell), and whether a `shell` may read it.
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
    """What policy says to a call, and why.

    An allowed command runs in `profile`, in the background and without a timeout of its own for `timeout_s` at most,
    0 for as long as it likes. `by` says who allowed it: the table, the classifier, a rule, a standing
    approval (`approval_id`). `shown` is what a person is told of the command: tier, reason, segments, what it touches.
    A refusal may bring its own `error`.
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
    """A command as it runs where nobody is asked about it."""
    seconds = spec.timeout_s or (verdict.timeout_s if spec.background else 0.0)
    return replace(spec, profile=verdict.profile, timeout_s=seconds)


@dataclass(frozen=True, slots=True)
class Approval:
    """A person's yes to one digest; None binds whatever that call proposes now (bare use)."""

    id: str | None = None
    digest: str | None = None


Withheld = Callable[[Path], str | None]
"""Why a file, absolute and without symlinks, is not shown to a call that nobody approved; None where it is."""


class Policy(Protocol):
    """Judges calls. What it said is recorded with what it allowed, so that a repeat of the call gets the same."""

    @property
    def asking(self) -> str:
        """Which commands wait for a person: one sentence for the model."""
        ...

    async def judge(self, asked: Asked) -> Verdict:
        """Say whether the call may go on, must be asked for, or is refused. Cancelling changes nothing."""
        ...

    async def withheld(self, conversation_id: str) -> Withheld:
        """Say which files no tool shows that was not approved for them: a search leaves them out."""
        ...

    async def refused(self, asked: Asked, why: ExecError) -> None:
        """Take note that the call was refused, by policy or because it is not what was approved."""
        ...


class TablePolicy:
    """The policy of the table: what passes there is allowed, all else is asked for."""

    asking: str = "A person approves each command before it runs."

    async def judge(self, asked: Asked) -> Verdict:
        """Allow the tools that pass, ask for the others."""
        if asked.act.asks:
            return Verdict(decision="ask", reason=f"{asked.tool} changes something")
        return Verdict(decision="allow", reason=f"{asked.tool} only reads")

    async def withheld(self, conversation_id: str) -> Withheld:  # noqa: ARG002
        """Show everything."""
        return lambda _: None

    async def refused(self, asked: Asked, why: ExecError) -> None:
        """Keep no record."""


_MAKER: Final = object()


@final
class Grant:
    """Proof that policy lets one proposal run. There is no public constructor."""

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
        """Names what may run."""
        return self.proposal.digest

    @property
    def spec(self) -> CommandSpec:
        """The command that may be started."""
        assert self.proposal.spec is not None
        return self.proposal.spec

    def covers(self, proposal: Proposal) -> bool:
        """Whether it was made for exactly this proposal."""
        return self.digest == proposal.digest


def grant(proposal: Proposal, verdict: Verdict, approval: Approval | None) -> Grant | None:
    """Turn a verdict, and the approval if there is one, into a grant; None while a person has to be asked.

    Raises:
        CommandDenied: Policy refuses it, or what would run is not what was approved.
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
    """The grant of a call that has claimed its session already: what `before` was granted for, and nothing else."""
    return Grant(_MAKER, proposal, "granted before", "before") if proposal.digest == before else None


def grant_by_operator(proposal: Proposal, reason: str) -> Grant:
    """Grant what the operator's own code or command line asks for; never for what a model proposed."""
    return Grant(_MAKER, proposal, f"operator: {reason}", "operator")
