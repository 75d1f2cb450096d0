"""The error tree of storage, by condition. Every message names cause and remedy and never holds a password.

StorageError
├── DatabaseUnsupported   the URL is none that we can use (also ValueError)
├── DatabaseUnreachable   no connection, or it broke
│   └── OutcomeUnknown    it broke during the commit
├── DatabaseLocked        another process holds a lock for too long
├── DatabaseFull          the disk is full
├── SchemaBehind          the tables are older than this program, or missing
├── SchemaTooNew          the tables are newer than this program
├── MigrationFailed       the tables cannot be brought up to date
├── StaleTurn             another execution holds the conversation now
├── HomeUnusable          the state directory cannot be trusted or written
└── ExecutorTaken         another worker runs under this executor id
"""

from __future__ import annotations


class StorageError(Exception):
    """Root of everything storage raises on purpose."""


class DatabaseUnsupported(StorageError, ValueError):
    """Raised when a database URL is malformed or names a database we do not know."""


class DatabaseUnreachable(StorageError):
    """Raised when there is no connection to the database, after bounded retries. Nothing was changed."""


class OutcomeUnknown(DatabaseUnreachable):
    """Raised when the connection broke during a commit: the transaction is done or not begun, nobody can say."""


class DatabaseLocked(StorageError):
    """Raised when a lock was not free within its timeout. Nothing was changed."""


class DatabaseFull(StorageError):
    """Raised when the disk of the database is full. Nothing was changed."""


class SchemaBehind(StorageError):
    """Raised when the tables are missing or older than this program needs."""


class SchemaTooNew(StorageError):
    """Raised when a newer program has migrated the tables."""


class MigrationFailed(StorageError):
    """Raised when the tables cannot be brought up to date; a failed upgrade leaves ours as they were."""


class StaleTurn(StorageError):
    """Raised when an execution acts for a turn that no longer holds its conversation. Nothing was changed."""

    def __init__(self, conversation_id: str, turn_id: str, epoch: int) -> None:
        super().__init__(conversation_id, turn_id, epoch)
        self.conversation_id = conversation_id
        self.turn_id = turn_id
        self.epoch = epoch

    def __str__(self) -> str:
        return (
            f"turn {self.turn_id!r} (epoch {self.epoch}) no longer holds conversation {self.conversation_id!r}: "
            "a newer execution goes on with it and this one stops"
        )


class HomeUnusable(StorageError):
    """Raised when the state directory is missing, not ours, or writable by others."""


class ExecutorTaken(StorageError):
    """Raised when another living worker holds the executor id."""

    def __init__(self, name: str, host: str, pid: int | None) -> None:
        super().__init__(name, host, pid)
        self.name = name
        self.host = host
        self.pid = pid

    def __str__(self) -> str:
        who = f"process {self.pid} on {self.host}" if self.pid is not None else f"a process on {self.host}"
        return f"executor id {self.name!r} is held by {who}: stop it, or start this worker under another id"
