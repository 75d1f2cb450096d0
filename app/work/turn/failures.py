"""Errors of an agent's run: whether the model is asked again, and what the conversation is told."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, cast

from dbos import error as dbos_error
from pydantic_ai.exceptions import (
    AgentRunError,
    ModelAPIError,
    ModelQuotaExceededError,
    ModelRequestRejectedError,
    UsageLimitExceeded,
    UserError,
)
from sqlalchemy.exc import SQLAlchemyError

from shellback.agent.endpoint import EndpointError
from shellback.exec.core.errors import ExecError
from shellback.storage.errors import StorageError
from shellback.work.turn.hearing import OutOfTime, Stopped

if TYPE_CHECKING:
    from pydantic_ai.durable_exec.dbos import StepConfig

log = logging.getLogger(__name__)

_NO_THREADS: Final = ("cannot schedule new futures", "Executor shutdown has been called")
"""Texts of Python when work is given to threads that were stopped."""


def worth_retrying(error: BaseException) -> bool:
    """Whether a repeat may succeed: the endpoint was unreachable, busy or broken, but did not reject the request."""
    if isinstance(error, EndpointError):
        return error.passing
    refused = isinstance(error, ModelRequestRejectedError | ModelQuotaExceededError)
    return isinstance(error, ModelAPIError) and not refused


def model_steps() -> StepConfig:
    """DBOS's retry options for a step that asks the model."""
    options: dict[str, Any] = {
        "retries_allowed": True,
        "max_attempts": 3,
        "interval_seconds": 1.0,
        # DBOS accepts this option, but the typed dictionary does not list it.
        "should_retry": worth_retrying,
    }
    return cast("StepConfig", options)


def answerable(error: Exception, *, leaving: bool) -> Exception | None:
    """The error to answer with; None if the turn is retried instead (storage, supervisor and DBOS errors).

    Other code of the agent is not retried: it would fail again, and its tools would act twice. But while the worker is
    `leaving`, its threads may be gone.
    """
    if isinstance(error, dbos_error.DBOSMaxStepRetriesExceeded):
        return error.errors[-1]
    if isinstance(error, AgentRunError | UserError):
        return error
    if isinstance(error, StorageError | SQLAlchemyError | ExecError | dbos_error.DBOSException):
        return None
    if leaving and str(error).startswith(_NO_THREADS):
        log.warning("the worker stopped during a turn, which is replayed: %s: %s", type(error).__name__, error)
        return None
    log.error("the agent's code failed", exc_info=error)
    return error


def explain(error: Exception) -> str:
    """The text for the conversation: why there is no answer, and what a person can do."""
    match error:
        case UsageLimitExceeded():
            return f"I stopped: this turn's budget is used up ({error}). Write again to go on with a new budget."
        case OutOfTime():
            return "I stopped: this turn's time is used up. Processes go on; write again to go on."
        case EndpointError():
            return f"The model could not answer: {error}"
        case Stopped():
            return str(error)
        case AgentRunError() | UserError():
            return f"The model could not answer ({type(error).__name__}: {str(error)[:500]}). Write again to retry."
        case _:
            said = f"{type(error).__name__}: {str(error)[:500]}"
            return f"The agent's own code failed ({said}). The worker's log has the line. Write again to retry."
