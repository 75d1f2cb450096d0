"""A tool as one object: its facts for policy, its text for the model, its body.

Does not import the agent framework, so that policy and the command line can look tools up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Self, TypeVar

from shellback.exec.core.errors import ExecError, InvalidCommand
from shellback.exec.core.identity import call_key, conversation_of, origin_of
from shellback.exec.core.model import CallKey, CallOrigin, CommandSpec, Session
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.sessions import Sessions
from shellback.exec.policy.tools import ASKING, Tool

if TYPE_CHECKING:
    from pydantic_ai import RunContext

    from shellback.exec.policy.policy import Withheld
    from shellback.exec.tools.file_tools.looks import Look, Looks
    from shellback.exec.tools.file_tools.marks import Mark
    from shellback.exec.tools.file_tools.reads import Reads
    from shellback.exec.tools.shell_calls import ShellCalls
    from shellback.exec.tools.tool_calls import ToolCalls

Args = Mapping[str, Any]
T = TypeVar("T")
Part = Literal["commands", "sessions", "shell", "blocks", "watches", "workspace"]
"""The part of the toolset that a tool belongs to; the operator switches parts on and off."""


class Result(NamedTuple, Generic[T]):
    """What a call returns: the value for the model, facts for programs."""

    value: T
    metadata: dict[str, Any] | None = None


@dataclass(frozen=True)
class Invocation:
    """One call of a tool, with its validated arguments and all defaults."""

    calls: ToolCalls
    ctx: RunContext[Any]
    tool: ExecTool
    args: dict[str, Any]

    @property
    def engine(self) -> Engine:
        """The engine that runs commands."""
        return self.calls.engine

    @property
    def act(self) -> ExecTool:
        """The tool, or the action of it that the call chose."""
        return self.tool.act(self.args)

    @cached_property
    def origin(self) -> CallOrigin:
        """Its origin; InvalidCommand if the call is not in the run's messages."""
        return origin_of(self.ctx)

    @property
    def key(self) -> CallKey:
        """Its call key, the same in every replay."""
        return call_key(self.origin)

    @property
    def conversation_id(self) -> str:
        """Its conversation."""
        return conversation_of(self.ctx)

    @property
    def sessions(self) -> Sessions:
        """The sessions of its conversation."""
        return Sessions(self.engine, self.conversation_id)

    async def made_before(self) -> bool:
        """Whether this is the replay of a call that has acted: then it returns the recorded outcome."""
        return await self.engine.store.recalled(self.key) is not None

    async def session(self) -> Session:
        """The session of its conversation that its arguments name, or SessionNotFound."""
        return await self.sessions.get(self.args["session_id"])


async def _unmade(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("a tool without a body was called")


@dataclass(frozen=True, kw_only=True)
class ExecTool(Tool):
    """A tool with its body; an instance decorates `run`, whose name, signature and docstring the model sees.

    Before a person is asked, `check` validates the arguments and `ready` the session that they name. Policy judges the
    command that a call starts (`spec`), the command for a shell (`line` finds the shell) or the typed bytes
    (`typed`), else the arguments. `renamed` maps facts to the names that a person is shown; `worded` words errors.
    """

    part: Part = "commands"
    run: Callable[..., Awaitable[Result[Any]]] = _unmade
    check: Callable[[Engine, Args], object] | None = None
    ready: Callable[[Invocation], Awaitable[Session | None]] | None = None
    spec: Callable[[Engine, Args], CommandSpec] | None = None
    line: Callable[[ShellCalls, str, Args, str], Awaitable[Session | None]] | None = None
    typed: Callable[[Args], bytes] | None = None
    worded: Callable[[ExecError], str] = str
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])

    def __call__(self, run: Callable[..., Awaitable[Result[Any]]]) -> Self:
        """The tool with this body and its name."""
        return replace(self, name=self.name or run.__name__, run=run)

    def act(self, args: Args) -> ExecTool:
        """The tool, or the action of it that these arguments choose."""
        found = super().act(args)
        return found if isinstance(found, ExecTool) else _ASKING


@dataclass(frozen=True, kw_only=True)
class FileTool(ExecTool):
    """A tool for files: `look` finds what a call would do.

    A reading tool has `tell`; a changing one has `wanted`: whether a file is as an interrupted call was to leave it.
    With `follow` a change goes through a symlink.
    """

    category: Literal["exec", "process", "workspace"] = "workspace"
    part: Part = "workspace"
    look: Callable[[Looks, str, Args, Withheld], Awaitable[Look]]
    tell: Callable[[Reads, Args, Look, Withheld], Awaitable[Result[str]]] = _unmade
    wanted: Callable[[Args, Mark], bool] = lambda _, __: False
    follow: bool = True


_ASKING = ExecTool(name=ASKING.name, approval=ASKING.approval)


@dataclass(frozen=True, kw_only=True)
class Action(ExecTool):
    """One action of a tool: the parameters that it `needs`, and the optional ones that it `takes`."""

    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()

    def accept(self, choice: str, args: Args) -> None:
        """Raise InvalidCommand for a missing or surplus argument; `choice` is the parameter that names the action."""
        given = {name for name, value in args.items() if value not in (None, "", {}) and value is not False}
        if lacking := [_WHAT[name] for name in self.needs if name not in given]:
            raise InvalidCommand(f"{self.name} needs {' and '.join(lacking)}")
        if surplus := sorted(given - {*self.needs, *self.takes, choice}):
            takes = ", ".join((*self.needs, *self.takes)) or "nothing else"
            raise InvalidCommand(f"{self.name} does not take {', '.join(surplus)}; it takes {takes}")


_WHAT = {
    "session_id": "session_id, which start has returned and list shows",
    "task_id": "task_id, which spawn has returned and status shows",
    "command": "command, the text of a bash command",
    "input": "input, the text to write, a line with its line end",
    "rows": "rows, the new number of rows",
    "cols": "cols, the new number of columns",
}


def by_name(*actions: Action) -> dict[str, Tool]:
    """The actions of a tool by name."""
    return {action.name: action for action in actions}


async def act(call: Invocation) -> Result[Any]:
    """Do the action that a call chose."""
    return await call.act.run(call)
