"""The policy of a worker, from settings and saved rules."""

from __future__ import annotations

from pathlib import Path, PurePath

from shellback.exec.core.base import Backend
from shellback.exec.core.model import READ_ONLY, WORK, SessionId
from shellback.exec.core.secrets import Secrets
from shellback.exec.policy.judge import Judge, Keys
from shellback.exec.policy.policy import Policy
from shellback.exec.policy.rules.matching import Rules
from shellback.settings import Settings
from shellback.storage import rules as saved
from shellback.storage.db import Database
from shellback.work.approvals.uses import standing
from shellback.work.approvals.verdicts import Audited


def policy_for(settings: Settings, database: Database, backend: Backend, written: Rules) -> Policy:
    """The policy for commands in `backend`, by the rules `written` in the operator's file and the saved ones."""
    hidden = settings.hidden

    async def rules(conversation_id: str) -> Rules:
        return written.plus(await database.read(saved.live, conversation_id))

    async def stands(conversation_id: str, session_id: str) -> str | None:
        return (await database.read(standing, conversation_id)).get(SessionId(session_id))

    sandboxed = READ_ONLY in backend.profiles
    # The classification holds for bash: another shell may read a line differently.
    bash = PurePath(backend.facts(READ_ONLY if sandboxed else WORK)["shell"]).name == "bash"
    judge = Judge(
        runs=backend,
        secret=Secrets(hidden),
        allowed=(*settings.readable, Path(backend.inner)) if sandboxed else (),
        keys=Keys(
            auto=settings.auto_approve != "off" and bash,
            trust_classifier=settings.trust_classifier,
            timeout_s=settings.unattended_timeout,
        ),
        state=settings.shellback_home,
        rules=rules,
        standing=stands,
        agent=settings.agent or None,
    )
    return Audited(judge, database)
