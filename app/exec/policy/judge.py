"""The policy of this program: default denials, then rules, then two keys that replace a person.

A command without an approval runs only if it is classified as read-only *and* runs in the profile `read_only`. The
profile holds even if the classification is wrong.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from shellback.exec.core.base import Backend
from shellback.exec.core.display import SECRETS
from shellback.exec.core.environment import home_of
from shellback.exec.core.errors import CheckTimedOut, ExecError, PathOutsideSandbox, PermissionDenied
from shellback.exec.core.limits import UNATTENDED_TIMEOUT_S
from shellback.exec.core.model import READ_ONLY, SHELL, WORK, CommandSpec
from shellback.exec.core.secrets import Secrets
from shellback.exec.core.threads import CHECK_S, FileThreads, checking
from shellback.exec.policy.classify.classify import classify
from shellback.exec.policy.classify.grammar import parse
from shellback.exec.policy.classify.literal import secrets_in
from shellback.exec.policy.classify.model import Judgement, Segment, Surroundings, Tier
from shellback.exec.policy.classify.syntax import Parsed, Unparsable
from shellback.exec.policy.policy import TABLE, Asked, Verdict, Withheld
from shellback.exec.policy.rules.carriers import SHELLS, name_of
from shellback.exec.policy.rules.denials import denial
from shellback.exec.policy.rules.enforced import any_outside, outside
from shellback.exec.policy.rules.matching import Facts, Hit, Rules, Tiers
from shellback.exec.policy.typed_lines import lines_of, only_interrupts, unknown

log = logging.getLogger(__name__)

TRUSTED: Final = "trusted classifier"
"""The `by` of a command that was classified as read-only and runs without a sandbox."""
CLASSIFIER: Final = "classifier"
_TOO_LONG: Final = "it may run for {:g} s, and without a person nothing does for more than {:g} s"
UNSEEN: Final = "unseen"
"""The `by` of a question about typed text whose effect in a shell is unknown."""


def judged(command: str, around: Surroundings) -> Judgement:
    """The judgement of a command line before any rule: the default denials, then the classification.

    An internal error in either is logged, and the command asks.
    """
    try:
        judgement = classify(command, around)
        if judgement.verdict == "deny" or (why := denial(command, around)) is None:
            return judgement
        return Judgement(verdict="deny", tier=Tier.ADMIN, reason=why, segments=judgement.segments)
    except Exception:
        log.exception("a command could not be judged, so a person is asked")
        return Judgement(verdict="needs_approval", tier=Tier.ADMIN, reason="it could not be judged: see the log")


def by_rules(judgement: Judgement, facts: Facts, rules: Rules) -> Judgement:
    """The judgement after rules that deny or ask. A rule that allows makes no command read-only."""
    hit = rules.decide(judgement, facts)
    if judgement.verdict == "deny" or hit is None or hit.effect == "allow":
        return judgement
    verdict = "deny" if hit.effect == "deny" else "needs_approval"
    return replace(judgement, verdict=verdict, reason=hit.reason)


def shown_of(judgement: Judgement) -> dict[str, Any]:
    """The whole judgement as JSON, to be displayed to the person who decides."""
    return {
        "tier": str(judgement.tier),
        "reason": judgement.reason,
        "segments": [
            {"text": one.text, "tier": str(one.tier), "reason": one.reason, "paths": list(one.paths)}
            for one in judgement.segments
        ],
        "touches": sorted({path for one in judgement.segments for path in one.paths}),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The keys that replace a person; a background command then runs for at most `timeout_s`.

    `trust_classifier` removes the second key, at the operator's risk.
    """

    auto: bool = True
    trust_classifier: bool = False
    timeout_s: float = UNATTENDED_TIMEOUT_S


RulesOf = Callable[[str], Awaitable[Rules]]
"""The rules of a conversation: those of the policy file, and those that people saved."""
Standing = Callable[[str, str], Awaitable[str | None]]
"""(conversation id, session id) → id of an approval of all input to the session, or None."""


async def _no_rules(_conversation_id: str) -> Rules:
    return Rules()


async def _none_stands(_conversation_id: str, _session_id: str) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Judges calls by their commands, by where these run, and by rules and standing approvals."""

    runs: Backend
    secret: Secrets
    allowed: tuple[Path, ...] = ()
    state: Path | None = None
    keys: Keys = field(default_factory=Keys)
    rules: RulesOf = _no_rules
    standing: Standing = _none_stands
    agent: str | None = None

    @property
    def sandboxed(self) -> bool:
        """Whether the second key exists: a profile in which a command can only read."""
        return READ_ONLY in self.runs.profiles

    @property
    def asking(self) -> str:
        if not self.keys.auto or not (self.sandboxed or self.keys.trust_classifier):
            return "A person approves each command before it runs."
        return (
            "Plain read-only commands (ls, cat, grep, find, git status, git diff ...) run at once; a person approves "
            "every other before it runs, so keep reading and changing in separate calls."
        )

    async def judge(self, asked: Asked) -> Verdict:
        if asked.spec is None and not asked.words:
            return await self._of_tool(asked)
        rules = await self.rules(asked.conversation_id)
        if asked.unfinished:
            said = await self._looked(partial(self._of_unfinished, asked))
            if said.decision == "deny":
                return said
        if asked.spec is None:
            return await self._looked(partial(self._of_files, asked, rules))
        return await self._unless_it_stands(
            asked, await self._looked(partial(self._of_command, asked, asked.spec, rules))
        )

    async def _looked(self, judging: Callable[[], Verdict]) -> Verdict:
        """The verdict, with files inspected as the user of commands; a denial if the inspection times out."""
        try:
            return await self._threads.run(judging, seconds=CHECK_S)
        except CheckTimedOut as error:
            return Verdict(decision="deny", reason=str(error), by="deadline")

    @property
    def _threads(self) -> FileThreads:
        return checking(self.runs.uid)

    async def withheld(self, conversation_id: str) -> Withheld:
        rules = await self.rules(conversation_id)
        facts = self._facts("", conversation_id, self.runs.workspace)
        return lambda path: "it may be a secret" if self.secret(path) else rules.withheld(path, facts)

    async def refused(self, asked: Asked, why: ExecError) -> None:
        """Record nothing; the worker's policy writes the audit."""

    def surroundings(self, asked: Asked, cwd: Path | None = None, more: tuple[Path, ...] = ()) -> Surroundings:
        """The surroundings of a call in `cwd`, by default the workspace; the call may name `more` directories."""
        workspace = self.runs.workspace
        private = self.runs.private_home(asked.conversation_id)
        home = private if asked.spec is None else home_of(asked.spec, workspace=str(workspace), private=private)
        return Surroundings(
            cwd=cwd or workspace,
            allowed=(workspace, *self.allowed, *more),
            secret=self.secret,
            home=Path(home),
            sandboxed=self.sandboxed,
            state=self.state,
            held=self._threads.held,
        )

    async def _of_tool(self, asked: Asked) -> Verdict:
        if not asked.act.asks:
            return Verdict(decision="allow", reason=f"{asked.tool} only reads")
        said = Verdict(decision="ask", reason=f"{asked.tool} changes something")
        if asked.act.types:
            rules = await self.rules(asked.conversation_id)
            said = await self._looked(partial(self._of_typed, asked, said, rules))
        return await self._unless_it_stands(asked, said)

    def _of_unfinished(self, asked: Asked) -> Verdict:
        """The verdict on a line that was typed in part: denied, or allowed until it is finished."""
        why = denial(asked.unfinished or "", self.surroundings(asked))
        if why is not None:
            return Verdict(decision="deny", reason=why, by="denial")
        return Verdict(decision="ask", reason="a line is typed in part")

    def _of_typed(self, asked: Asked, said: Verdict, rules: Rules) -> Verdict:
        """The verdict on typed text: if a shell may read it, the verdict on the resulting lines."""
        text = asked.typed or ""
        around = self.surroundings(asked)
        for line in ((asked.unfinished or "") + text, text):
            if (why := denial(line, around)) is not None:
                return Verdict(decision="deny", reason=why, by="denial")
        if not asked.shell:
            return said
        why = "it is not known what is typed" if asked.typed is None else unknown(asked.unfinished, text)
        if why is not None:
            return Verdict(decision="ask", reason=why, by=UNSEEN, shown={"tier": str(Tier.READ_WRITE), "reason": why})
        if not text.strip() or only_interrupts(text):
            return said
        found = self._of_command(asked, CommandSpec(command=text, cwd=str(around.cwd), kind=SHELL), rules)
        return replace(found, decision="ask") if found.decision == "allow" else found

    async def _unless_it_stands(self, asked: Asked, said: Verdict) -> Verdict:
        """The verdict, or an allowance if it asks about input and a person approved all input to the session."""
        session_id = asked.args.get("session_id")
        admin = said.shown.get("tier") == str(Tier.ADMIN)
        asks_itself = said.decision == "ask" and said.by == TABLE and (asked.unfinished == "" or not asked.shell)
        if not asks_itself or admin or not asked.act.input or not isinstance(session_id, str):
            return said
        approval_id = await self.standing(asked.conversation_id, session_id)
        if approval_id is None:
            return said
        why = f"approval {approval_id} holds for this session until it ends"
        return replace(said, decision="allow", reason=why, by="standing approval", approval_id=approval_id)

    def _of_files(self, asked: Asked, rules: Rules) -> Verdict:
        said = self._held_against(asked, rules)
        if said.decision != "ask":
            return said
        below = [str(one) for one in self.secret.listed if any(one.is_relative_to(path) for path in asked.files)]
        named = [str(path) for path in asked.files if self.secret(path)]
        return _with_secrets(said, sorted({*named, *below}))

    def _held_against(self, asked: Asked, rules: Rules) -> Verdict:
        line = shlex.join(asked.words)
        secrets = [str(path) for path in asked.files if self.secret(path)]
        reads = not asked.act.asks
        tier = Tier.READ_ONLY if reads else Tier.READ_WRITE
        reason = f"{asked.tool} only reads" if reads else f"{asked.tool} changes something"
        if secrets:
            reason = f"{', '.join(secrets)} may be a secret"
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
        around = self.surroundings(asked, more=rules.tiers.allowed_paths)
        if rules.tiers.strict_path_enforcement and (why := any_outside(paths, around)) is not None:
            return _outside(why, shown)
        hit = rules.decide(judgement, self._facts(line, asked.conversation_id, around.cwd))
        if hit is not None and hit.effect != "allow":
            return Verdict(decision=hit.effect, reason=hit.reason, by=_named_by(hit), shown=shown)
        if passes:
            return Verdict(decision="allow", reason=reason, shown=shown)
        if hit is not None and not secrets:
            return Verdict(decision="allow", reason=hit.reason, by=_named_by(hit), rule_ids=hit.rule_ids, shown=shown)
        shown["tier"] = str(max(tier, rules.tiers.required(judgement)))
        return _asked(judgement, rules.tiers, {**shown, "touches": list(paths)})

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
        around = self.surroundings(asked, Path(spec.cwd), rules.tiers.allowed_paths)
        said = self._judged(asked, spec, rules, around)
        if said.decision != "ask":
            return said
        # A program outside a sandbox, and text that is not in the line, may read whatever it likes.
        known = self.sandboxed and not (spec.stdin or spec.env or spec.kind)
        return _with_secrets(said, secrets_in(spec.command, around) if known else None)

    def _judged(self, asked: Asked, spec: CommandSpec, rules: Rules, around: Surroundings) -> Verdict:
        judgement = judged(spec.command, around)
        shown = shown_of(judgement)
        if (raised := rules.tiers.required(judgement)) > judgement.tier:
            shown |= {"tier": str(raised), "reason": f"{judgement.reason} ([tiers] raises it)"}
        if judgement.verdict == "deny":
            return Verdict(decision="deny", reason=judgement.reason, by="denial", shown=shown)
        if rules.tiers.strict_path_enforcement and (why := outside(spec.command, judgement, around)) is not None:
            return _outside(why, shown)
        if (fed := self._of_input(spec, judgement, asked, rules, around)) is not None:
            return replace(fed, shown=shown)
        more = bool(spec.stdin or spec.env or spec.keep_stdin_open or spec.pty or spec.kind)
        facts = self._facts(spec.command, asked.conversation_id, around.cwd, more=more)
        hit = rules.decide(judgement, facts)
        ruled = (
            None
            if hit is None
            else Verdict(decision=hit.effect, reason=hit.reason, by=_named_by(hit), rule_ids=hit.rule_ids, shown=shown)
        )
        if ruled is not None and ruled.decision != "allow":
            return ruled
        # Aliases and functions of the shell can change the meaning of these words.
        keys = None if spec.kind == SHELL else self._by_keys(spec, judgement, shown)
        if keys is not None and ruled is None:
            keys = replace(keys, timeout_s=self.keys.timeout_s)
            if spec.background and spec.timeout_s > self.keys.timeout_s:
                reason = _TOO_LONG.format(spec.timeout_s, self.keys.timeout_s)
                keys, judgement, shown = None, replace(judgement, reason=reason), {**shown, "reason": reason}
        return keys or ruled or _asked(judgement, rules.tiers, shown)

    def _of_input(
        self, spec: CommandSpec, judgement: Judgement, asked: Asked, rules: Rules, around: Surroundings
    ) -> Verdict | None:
        """The verdict that stops a shell's standard input, which it runs like typed lines; None if none does."""
        words = [word for one in judgement.segments for word in one.words or one.text.split()]
        if not spec.stdin or SHELLS.isdisjoint(map(name_of, words)):
            return None
        text = lines_of(spec.stdin, eof=True)
        if isinstance(parse(text), Unparsable):
            return None
        inner = judged(text, around)
        if rules.tiers.strict_path_enforcement and (why := outside(text, inner, around)) is not None:
            return _outside(why, {})
        found = by_rules(inner, self._facts(text, asked.conversation_id, around.cwd, more=True), rules)
        return Verdict(decision="deny", reason=found.reason, by="denial") if found.verdict == "deny" else None

    def _by_keys(self, spec: CommandSpec, judgement: Judgement, shown: Mapping[str, Any]) -> Verdict | None:
        if judgement.verdict != "read_only" or not self.keys.auto or spec.pty is not None or spec.env:
            return None
        if self.sandboxed:
            return Verdict(decision="allow", reason=judgement.reason, by=CLASSIFIER, profile=READ_ONLY, shown=shown)
        if self.keys.trust_classifier:
            return Verdict(decision="allow", reason=judgement.reason, by=TRUSTED, shown=shown)
        return None


def _with_secrets(said: Verdict, paths: list[str] | None) -> Verdict:
    """The question with the secrets that the call names; None if it is not known whether it names any."""
    return replace(said, shown={**said.shown, SECRETS: paths})


def _named_by(hit: Hit) -> str:
    return f"rule {' '.join(hit.rule_ids)}" if hit.rule_ids else f"policy {hit.source}"


def _plain(line: str, words: tuple[str, ...]) -> bool:
    """Whether the line of a file tool's call parses to exactly these words."""
    try:
        parsed = parse(line)
    except Exception:
        log.exception("a command could not be judged, so a person is asked")
        return False
    if not isinstance(parsed, Parsed) or parsed.outside or len(parsed.commands) != 1:
        return False
    (command,) = parsed.commands
    return tuple(word.text for word in command.words) == words and not command.redirects and not command.assignments


def _outside(why: str, shown: Mapping[str, Any]) -> Verdict:
    return Verdict(decision="deny", reason=why, by="paths", shown=shown, error=PathOutsideSandbox(why))


def _asked(judgement: Judgement, tiers: Tiers, shown: Mapping[str, Any]) -> Verdict:
    required = tiers.required(judgement)
    if required > tiers.default and tiers.strict:
        error = PermissionDenied(str(required), str(tiers.default))
        return Verdict(decision="deny", reason=str(error), by="tier", shown=shown, error=error)
    return Verdict(decision="ask", reason=judgement.reason, shown=shown)
