"""Errors of storage, by condition. Every message names cause and remedy, and no message holds a password."""

from __future__ import annotations


class StorageError(Exception):
    """Root of everything storage raises on purpose."""


class DatabaseUnsupported(StorageError, ValueError):
    """Raised when a database URL is malformed or names an unsupported database."""


class DatabaseUnreachable(StorageError):
    """Raised when there is no connection to the database, after bounded retries. Nothing was changed."""


class OutcomeUnknown(DatabaseUnreachable):
    """Raised when the connection broke during a commit: it is unknown whether the transaction took place."""


class DatabaseLocked(StorageError):
    """Raised when a lock was not free within its timeout. Nothing was changed."""


class DatabaseFull(StorageError):
    """Raised when the disk of the database is full. Nothing was changed."""


class SchemaBehind(StorageError):
    """Raised when the tables are missing or older than this program needs."""


class SchemaTooNew(StorageError):
    """Raised when a newer program has migrated the tables."""


class MigrationFailed(StorageError):
    """Raised when the tables cannot be upgraded; our own tables are unchanged then."""


class StaleTurn(StorageError):
    """Raised when an execution acts for a turn that no longer holds its conversation. Nothing was changed."""

    def __init__(self, conversation_id: str, turn_id: str, epoch: int) -> None:
        super().__init__(conversation_id, turn_id, epoch)

    def __str__(self) -> str:
        conversation_id, turn_id, epoch = self.args
        return (
            f"turn {turn_id!r} (epoch {epoch}) no longer holds conversation {conversation_id!r}: "
            "a newer execution continues it and this one stops"
        )


class HomeUnusable(StorageError):
    """Raised when the state directory is missing, not ours, or writable by others."""


class ExecutorTaken(StorageError):
    """Raised when another worker holds the executor id.

    `renewed_at` is the last renewal of its lease; None for the lock of a file.
    """

    def __init__(self, name: str, host: str, pid: int | None, renewed_at: float | None = None) -> None:
        super().__init__(name, host, pid, renewed_at)
        self.name = name
        self.host = host
        self.pid = pid
        self.renewed_at = renewed_at

    def __str__(self) -> str:
        return f"executor id {self.name!r} is held by {self.holder}: stop it, or start this worker under another id"

    @property
    def holder(self) -> str:
        """The process that holds it, with its host."""
        return f"process {self.pid} on {self.host}" if self.pid is not None else f"a process on {self.host}"


class HostTaken(ExecutorTaken):
    """Raised when a worker on another machine has the id of this host, as in a copy of a state directory."""

    def __str__(self) -> str:
        return (
            f"the id of this host is that of {self.holder}, on another machine: give each machine a state directory of "
            "its own"
        )


class TokenRefused(StorageError):
    """Raised when a token cannot be made, or none has the given name. Nothing was changed."""


class AccountRefused(StorageError):
    """Raised when an account cannot be made, or none has the given name. Nothing was changed."""


class MemberRefused(StorageError):
    """Raised when a machine cannot be invited, or cannot join or be revoked. Nothing was changed."""
