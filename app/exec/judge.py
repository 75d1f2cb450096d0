"""The policy of this program: a command is read, denials and rules speak first, and two keys replace a person.

A command that nobody approved runs only if it is classified as read-only *and* runs in the read-only profile,
which holds it to that even if the classifier is wrong.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

from app.exec.classify.classify import classify
from app.exec.classify.grammar import parse
from app.exec.classify.model import Judgement, Segment, Surroundings, Tier
from app.exec.classify.syntax import Parsed, Unparsable
from app.exec.errors import ExecError, PathOutsideSandbox, PermissionDenied
from app.exec.model import READ_ONLY, SHELL, WORK, CommandSpec
from app.exec.paths import inside
from app.exec.policy import INPUT, TABLE, Asked, Verdict, Withheld, asks
from app.exec.rules.denials import denial, denied
from app.exec.rules.matching import Facts, Hit, Rules

log = logging.getLogger(__name__)

TRUSTED: Final = "trusted classifier"
"""Who allowed a command that was classified as read-only and that nothing holds to it."""
CLASSIFIER: Final = "classifier"


def judged(command: str, around: Surroundings) -> Judgement:
    """What a command line is, before any rule of an operator: the default denials, then the classification.

    A mistake of ours in either asks, and is logged: it never lets a command pass and never ends a turn.
    """
    try:
        return _judged(command, around)
    except Exception:
        log.exception("a command could not be judged, so a person is asked")
        return Judgement(verdict="needs_approval", tier=Tier.ADMIN, reason="it could not be judged: see the log")


def _judged(command: str, around: Surroundings) -> Judgement:
    judgement = classify(command, around)
    parsed = parse(command)
    if isinstance(parsed, Unparsable):
        return judgement
    why = denied(parsed, around)
    if why is None:
        return judgement
    return Judgement(verdict="deny", tier=Tier.ADMIN, reason=why, segments=judgement.segments)


def by_rules(judgement: Judgement, facts: Facts, rules: Rules) -> Judgement:
    """The judgement after rules that deny or ask; one that allows makes nothing read-only."""
    hit = rules.decide(judgement, facts)
    if judgement.verdict == "deny" or hit is None or hit.effect == "allow":
        return judgement
    verdict = "deny" if hit.effect == "deny" else "needs_approval"
    return replace(judgement, verdict=verdict, reason=hit.reason)


def shown_of(judgement: Judgement) -> dict[str, Any]:
    """A judgement as portable JSON, for whoever decides: nothing of it is left out."""
    return {
        "tier": str(judgement.tier),
        "reason": judgement.reason,
        "segments": [_segment(one) for one in judgement.segments],
        "touches": sorted({path for one in judgement.segments for path in _named(one)}),
    }


def _named(one: Segment) -> tuple[str, ...]:
    """The files that a command names; of one that is not known, every word that reads like a path."""
    return one.paths or tuple(word for word in one.words[1:] if "/" in word and not word.startswith("-"))


def _segment(one: Segment) -> dict[str, Any]:
    return {"text": one.text, "tier": str(one.tier), "reason": one.reason, "paths": list(one.paths)}


class Runs(Protocol):
    """Where commands run, as far as policy has to know; every `Backend` is one."""

    @property
    def name(self) -> str: ...

    @property
    def profiles(self) -> frozenset[str]: ...

    @property
    def workspace(self) -> Path: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """What may replace a person. `trust_classifier` leaves the second key away: the operator's own risk."""

    auto: bool = True
    trust_classifier: bool = False


RulesOf = Callable[[str], Awaitable[Rules]]
"""The rules that hold for a conversation, of the operator's file and those that people saved."""
Standing = Callable[[str, str], Awaitable[str | None]]
"""The id of an approval of all input to a session: (conversation id, session id) → id or None."""


async def _no_rules(_conversation_id: str) -> Rules:
    return Rules()


async def _none_stands(_conversation_id: str, _session_id: str) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Judges calls by what their commands do, where they run, and what people said before."""

    runs: Runs
    secret: Callable[[Path], bool]
    allowed: tuple[Path, ...] = ()
    home: Path | None = None
    state: Path | None = None
    keys: Keys = field(default_factory=Keys)
    rules: RulesOf = _no_rules
    standing: Standing = _none_stands
    agent: str | None = None

    @property
    def sandboxed(self) -> bool:
        """Whether the second key can be had: a profile that holds a command to reading."""
        return READ_ONLY in self.runs.profiles

    @property
    def asking(self) -> str:
        """See `Policy.asking`."""
        if not self.keys.auto or not (self.sandboxed or self.keys.trust_classifier):
            return "A person approves each command before it runs."
        return (
            "Plain read-only commands (ls, cat, grep, find, git status, git diff ...) run at once; a person approves "
            "every other before it runs, so keep reading and changing in separate calls."
        )

    async def judge(self, asked: Asked) -> Verdict:
        """See `Policy.judge`."""
        if asked.spec is None and not asked.words:
            return await self._of_tool(asked)
        rules = await self.rules(asked.conversation_id)
        # Paths are looked up: on a hanging mount that waits, and must not keep everybody else waiting.
        if asked.spec is None:
            return await asyncio.to_thread(self._of_files, asked, rules)
        said = await asyncio.to_thread(self._of_command, asked, asked.spec, rules)
        return await self._unless_it_stands(asked, said)

    async def withheld(self, conversation_id: str) -> Withheld:
        """See `Policy.withheld`."""
        rules = await self.rules(conversation_id)
        facts = self._facts("", conversation_id, self.runs.workspace)
        return lambda path: "it is a listed secret" if self.secret(path) else rules.withheld(path, facts)

    async def refused(self, asked: Asked, why: ExecError) -> None:
        """Keep no record: that is for whoever has a place for it."""

    def surroundings(self, cwd: Path, more: tuple[Path, ...] = ()) -> Surroundings:
        """What a command in `cwd` finds around it; `more` may be named too."""
        workspace = self.runs.workspace
        return Surroundings(
            cwd=cwd,
            allowed=(workspace, *self.allowed, *more),
            secret=self.secret,
            home=self.home or workspace,
            sandboxed=self.sandboxed,
            state=self.state,
        )

    async def _of_tool(self, asked: Asked) -> Verdict:
        if not asks(asked.act):
            return Verdict(decision="allow", reason=f"{asked.tool} only reads")
        why = await asyncio.to_thread(self._typed, asked)
        if why is not None:
            return Verdict(decision="deny", reason=why, by="denial")
        return await self._unless_it_stands(asked, Verdict(decision="ask", reason=f"{asked.tool} changes something"))

    def _typed(self, asked: Asked) -> str | None:
        """Why text is not typed where a shell may read it."""
        text = asked.args.get("input" if asked.tool == "shell_session" else "data")
        return denial(text, self.surroundings(self.runs.workspace)) if isinstance(text, str) else None

    async def _unless_it_stands(self, asked: Asked, said: Verdict) -> Verdict:
        """What was said, unless a person would be asked about input and has approved all of it to that session."""
        session_id = asked.args.get("session_id")
        admin = said.shown.get("tier") == str(Tier.ADMIN)
        asks_itself = said.decision == "ask" and said.by == TABLE
        if not asks_itself or admin or asked.act not in INPUT or not isinstance(session_id, str):
            return said
        approval_id = await self.standing(asked.conversation_id, session_id)
        if approval_id is None:
            return said
        why = f"approval {approval_id} holds for this session until it ends"
        return replace(said, decision="allow", reason=why, by="standing approval", approval_id=approval_id)

    def _of_files(self, asked: Asked, rules: Rules) -> Verdict:
        line = shlex.join(asked.words)
        secrets = [str(path) for path in asked.files if self.secret(path)]
        reads = not asks(asked.tool)
        tier = Tier.READ_ONLY if reads else Tier.READ_WRITE
        reason = f"{asked.tool} only reads" if reads else f"{asked.tool} changes something"
        if secrets:
            reason = f"{', '.join(secrets)} is a listed secret"
        elif not _plain(line, asked.words):
            reason = "its path cannot be held against rules"
        passes = reads and not secrets and _plain(line, asked.words)
        paths = tuple(str(path) for path in asked.files)
        judgement = Judgement(
            verdict="read_only" if passes else "needs_approval",
            tier=tier,
            reason=reason,
            segments=(Segment(text=line, words=asked.words, tier=tier, reason=reason, paths=paths),),
        )
        shown = {"tier": str(tier), "reason": reason}
        around = self.surroundings(self.runs.workspace, rules.tiers.allowed_paths)
        hit = rules.decide(judgement, self._facts(line, asked.conversation_id, around.cwd))
        if hit is not None and hit.effect != "allow":
            return Verdict(decision=hit.effect, reason=hit.reason, by=_named_by(hit), shown=shown)
        if passes:
            return Verdict(decision="allow", reason=reason, shown=shown)
        if hit is not None and not secrets:
            return Verdict(decision="allow", reason=hit.reason, by=_named_by(hit), rule_ids=hit.rule_ids, shown=shown)
        return _asked(judgement, rules, around, {**shown, "touches": list(paths)})

    def _facts(self, line: str, conversation_id: str, cwd: Path, *, more: bool = False) -> Facts:
        return Facts(
            command=line,
            backend=self.runs.name,
            profile=WORK,
            conversation_id=conversation_id,
            agent=self.agent,
            cwd=cwd,
            more=more,
            now=time.time(),
        )

    def _of_command(self, asked: Asked, spec: CommandSpec, rules: Rules) -> Verdict:
        around = self.surroundings(Path(spec.cwd), rules.tiers.allowed_paths)
        if spec.login or spec.kind == SHELL:
            around = replace(around, home=self.runs.workspace)
        judgement = judged(spec.command, around)
        shown = shown_of(judgement)
        if judgement.verdict == "deny":
            return Verdict(decision="deny", reason=judgement.reason, by="denial", shown=shown)
        more = bool(spec.stdin or spec.env or spec.keep_stdin_open or spec.pty or spec.kind)
        facts = self._facts(spec.command, asked.conversation_id, around.cwd, more=more)
        hit = rules.decide(judgement, facts)
        verdict = _by_rule(hit, shown) if hit is not None and hit.effect != "allow" else None
        # What the aliases and functions of a shell make of these words is not known.
        keys = None if spec.kind == SHELL else self._by_keys(spec, judgement, shown)
        return verdict or keys or _by_rule(hit, shown) or _asked(judgement, rules, around, shown)

    def _by_keys(self, spec: CommandSpec, judgement: Judgement, shown: Mapping[str, Any]) -> Verdict | None:
        if judgement.verdict != "read_only" or not self.keys.auto or spec.pty is not None or spec.env:
            return None
        if self.sandboxed:
            return Verdict(decision="allow", reason=judgement.reason, by=CLASSIFIER, profile=READ_ONLY, shown=shown)
        if self.keys.trust_classifier:
            return Verdict(decision="allow", reason=judgement.reason, by=TRUSTED, shown=shown)
        return None


def _by_rule(hit: Hit | None, shown: Mapping[str, Any]) -> Verdict | None:
    if hit is None:
        return None
    return Verdict(decision=hit.effect, reason=hit.reason, by=_named_by(hit), rule_ids=hit.rule_ids, shown=shown)


def _named_by(hit: Hit) -> str:
    return f"rule {' '.join(hit.rule_ids)}" if hit.rule_ids else f"policy {hit.source}"


def _plain(line: str, words: tuple[str, ...]) -> bool:
    """Whether the line of a call for files is read as exactly these words."""
    try:
        parsed = parse(line)
    except Exception:
        log.exception("a command could not be judged, so a person is asked")
        return False
    if not isinstance(parsed, Parsed) or parsed.outside or len(parsed.commands) != 1:
        return False
    (command,) = parsed.commands
    return tuple(word.text for word in command.words) == words and not command.redirects and not command.assignments


def _asked(judgement: Judgement, rules: Rules, around: Surroundings, shown: Mapping[str, Any]) -> Verdict:
    tiers = rules.tiers
    required = rules.required(judgement)
    if required > tiers.default and tiers.strict:
        error = PermissionDenied(str(required), str(tiers.default))
        return Verdict(decision="deny", reason=str(error), by="tier", shown=shown, error=error)
    if tiers.strict_path_enforcement:
        for path in shown["touches"]:
            if not any(inside(around.cwd / path, place) for place in around.allowed):
                error = PathOutsideSandbox(f"{path!r} is outside of what commands may name, and paths are enforced")
                return Verdict(decision="deny", reason=str(error), by="paths", shown=shown, error=error)
    return Verdict(decision="ask", reason=judgement.reason, shown=shown)
