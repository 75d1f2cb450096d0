"""The error tree of the exec engine, by condition; the class says who must react.

ExecError
├── for the model (a failed tool result; the model adapts)
│   ├── InvalidCommand            an argument is invalid (also ValueError)
│   │   ├── PathOutsideSandbox    a path is outside the workspace
│   │   └── PasswordWanted        a person has to type a password
│   ├── CommandDenied             policy refuses this command (also PermissionError)
│   ├── PermissionDenied          the tier is too low (also PermissionError)
│   ├── SessionNotFound           no such session in this conversation
│   ├── TaskCompleted             the session has already ended
│   ├── PtyError                  needs a terminal, or the terminal failed
│   └── InputUnknown              unknown whether input arrived; it is never written twice
├── for the operator (CLI, log, alarm)
│   ├── BackendUnavailable        the backend cannot run here (also RuntimeError)
│   ├── SpawnFailed               nothing could be started (also RuntimeError)
│   ├── SupervisorUnreachable     the supervisor does not answer
│   │   └── SupervisorAbsent      no supervisor runs, and none may be started
│   ├── WorkspaceUnusable         missing, or not writable by the uid that runs commands
│   │   └── MountUnusable         a host mount cannot be copied into it; nothing was copied
│   ├── PolicyUnusable            the policy file has a mistake
│   └── LimitReached              a stated bound is used up
└── for us (a bug)
    └── InvalidTransition         a state machine was asked for an illegal move
"""

from __future__ import annotations


class ExecError(Exception):
    """Root of all errors that the exec engine raises on purpose."""


class InvalidCommand(ExecError, ValueError):
    """Raised when an argument of a call is invalid; the message names the bound."""


class PathOutsideSandbox(InvalidCommand):
    """Raised when a path, after its symlinks, is outside the workspace.

    `leads` is the absolute path to which the walk would have continued, and which was not inspected; "" if unknown.
    """

    leads: str = ""


class CheckTimedOut(ExecError):
    """Raised when the inspection of a call's files timed out; nothing was done, and a thread may hang."""


class PasswordWanted(InvalidCommand):
    """Raised when a model would type at a password prompt; the message says how a person can."""


class CommandDenied(ExecError, PermissionError):
    """Raised when policy refuses a command; the message names the rule."""


class PermissionDenied(ExecError, PermissionError):
    """Raised when a call needs a higher tier than the caller has."""

    def __init__(self, required: str, granted: str) -> None:
        super().__init__(required, granted)
        self.required = required
        self.granted = granted

    def __str__(self) -> str:
        return f"permission denied: requires {self.required}, have {self.granted}"


class SessionNotFound(ExecError, LookupError):
    """Raised when no session of this conversation has the id."""

    def __init__(self, session_id: str) -> None:
        super().__init__(session_id)
        self.session_id = session_id

    def __str__(self) -> str:
        return f"no session {self.session_id!r} in this conversation; process_list shows the ones there are"


class TaskCompleted(ExecError):
    """Raised when a call needs a live process and the session has ended; `end` says how."""

    def __init__(self, session_id: str, end: str) -> None:
        super().__init__(session_id, end)
        self.session_id = session_id
        self.end = end

    def __str__(self) -> str:
        return f"session {self.session_id} has ended: {self.end}; nothing was done, process_log reads what it printed"


class PtyError(ExecError):
    """Raised when a call needs a terminal that the session does not have, or the terminal failed."""


class InputUnknown(ExecError):
    """Raised when a crash leaves unknown whether input arrived; the input is not written again."""


class BackendUnavailable(ExecError, RuntimeError):
    """Raised when the chosen backend cannot run commands here; the message has cause and remedy."""


class SpawnFailed(ExecError, RuntimeError):
    """Raised when nothing could be started, and the cause is not the command itself."""


class SupervisorUnreachable(ExecError, RuntimeError):
    """Raised when the supervisor neither answers nor can be started."""


class SupervisorAbsent(SupervisorUnreachable):
    """Raised when no supervisor runs and the caller must not start one."""


class WorkspaceUnusable(ExecError, RuntimeError):
    """Raised when the workspace is missing or the uid that runs commands cannot write it."""


class MountUnusable(WorkspaceUnusable):
    """Raised when a host mount cannot be copied completely; nothing was copied. The message has cause and remedy."""


class PolicyUnusable(ExecError):
    """Raised when a policy file has a mistake; the message has file, line and remedy."""


class LimitReached(ExecError):
    """Raised when a stated bound (sessions, descriptors, disk) is used up; the message names it."""


class InvalidTransition(ExecError, AssertionError):
    """Raised when a session is moved between states without an edge: a bug of ours."""
