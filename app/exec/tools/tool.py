"""A tool as one object: what policy knows of it, what a model is told of it, and what a call of it does.

Nothing here loads the agent framework, so that whoever has the name of a tool can ask what it is.
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
"""The part of the toolset that a tool belongs to; an operator chooses the parts."""


class Result(NamedTuple, Generic[T]):
    """What a call returns: the value for the model, facts for programs."""

    value: T
    metadata: dict[str, Any] | None = None


@dataclass(frozen=True)
class Invocation:
    """One call of a tool: its validated arguments with all defaults, and what it may use."""

    calls: ToolCalls
    ctx: RunContext[Any]
    tool: ExecTool
    args: dict[str, Any]

    @property
    def engine(self) -> Engine:
        """Where commands run."""
        return self.calls.engine

    @property
    def act(self) -> ExecTool:
        """The tool that the call amounts to."""
        return self.tool.act(self.args)

    @property
    def approved(self) -> bool:
        """Whether a person has approved it."""
        return self.ctx.tool_call_approved

    @cached_property
    def origin(self) -> CallOrigin:
        """Who asked for it; InvalidCommand where the call is not in the run's messages."""
        return origin_of(self.ctx)

    @property
    def key(self) -> CallKey:
        """Names the call, the same in every repeat of it."""
        return call_key(self.origin)

    @property
    def conversation_id(self) -> str:
        """The conversation that it is part of."""
        return conversation_of(self.ctx)

    @property
    def sessions(self) -> Sessions:
        """The sessions that it may see."""
        return Sessions(self.engine, self.conversation_id)

    async def made_before(self) -> bool:
        """Whether this is the repeat of a call that has acted: it is told what it did, whatever happened since."""
        return await self.engine.store.recalled(self.key) is not None

    async def session(self) -> Session:
        """The session of its conversation that its arguments name, or SessionNotFound."""
        return await self.sessions.get(self.args["session_id"])


async def _unmade(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("a tool without a body was called")


@dataclass(frozen=True, kw_only=True)
class ExecTool(Tool):
    """A tool with its body; an instance decorates `run`, whose name, signature and docstring a model is shown.

    `check` accepts the arguments before anybody is asked, `ready` what they are about as it stands then. What a call
    would do is, for policy and the person, the command that it starts (`spec`), the command that it has a shell run
    (`line` finds the shell), or the bytes that it types (`typed`); a tool that has none is judged by its arguments.
    `part` is the part of the toolset, `renamed` maps facts to the names that a person is shown, `worded`
    makes the text of an error.
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
        """The tool that a call amounts to: of one that does several things, the one that does just this."""
        found = super().act(args)
        return found if isinstance(found, ExecTool) else _ASKING

    def command(self, engine: Engine, args: Args) -> CommandSpec:
        """The command that a call starts."""
        assert self.spec is not None
        return self.spec(engine, args)


@dataclass(frozen=True, kw_only=True)
class FileTool(ExecTool):
    """A tool for files, which starts no process: what a call would do is what `look` finds.

    A reading one has `tell`, a changing one `wanted`: whether a file is as an interrupted call was to leave it.
    `follow` is whether a change is to what a link leads to.
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
    """One of several things that a tool does: the parameters that it `needs`, and those that it `takes` besides."""

    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()

    def accept(self, choice: str, args: Args) -> None:
        """Accept what it was given; `choice` is the parameter that names the action.

        Raises:
            InvalidCommand: It lacks something, or has something that it does not take.
        """
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
    """The actions of a tool by the names that calls choose them by."""
    return {action.name: action for action in actions}


async def act(call: Invocation) -> Result[Any]:
    """Do the one thing that a call of a tool with several names."""
    return await call.act.run(call)
