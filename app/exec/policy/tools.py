"""What is known of each tool without its body: one record a tool, which policy, storage and approvals ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool: what it is, and whether a person is asked first: never, always, or as the call is judged.

    One that passes asks by itself where the file it is about may be a secret. `starts` is whether it starts a process,
    `files` whether it reads or changes files without one. `types` is whether its calls type; `input` whether they may
    be approved for all of a session, and `terminal` whether that needs one. `rule` is whether an approved call may be
    remembered as a rule. A tool that does several things has `acts`: by the value of its parameter `choice`, the tool
    that does no more than that.
    """

    name: str
    category: Literal["exec", "process", "workspace"]
    approval: Literal["pass", "ask", "judge"] = "pass"
    starts: bool = False
    files: bool = False
    types: bool = False
    input: bool = False
    terminal: bool = True
    rule: bool = False
    choice: str = ""
    acts: Mapping[str, Tool] = field(default_factory=dict[str, "Tool"])

    @property
    def asks(self) -> bool:
        """Whether a call may wait for a person."""
        return self.approval != "pass"

    @property
    def asks_always(self) -> bool:
        """Whether it does whatever the call is; the body of the others asks once it has been judged."""
        return self.approval == "ask"

    @property
    def metadata(self) -> dict[str, str]:
        """What observers and other toolsets are told."""
        return {"category": self.category}

    def act(self, args: Mapping[str, Any]) -> Tool:
        """The tool that a call amounts to: of one that does several things, the one that does just this."""
        return self.acts.get(str(args.get(self.choice)), EXECUTE) if self.acts else self


EXECUTE: Final = Tool(name="execute", category="exec", approval="judge", starts=True, rule=True)
EXECUTE_PTY: Final = Tool(name="execute_pty", category="exec", approval="judge", starts=True)
PROCESS_LIST: Final = Tool(name="process_list", category="process")
PROCESS_POLL: Final = Tool(name="process_poll", category="process")
PROCESS_LOG: Final = Tool(name="process_log", category="process")
PROCESS_WRITE: Final = Tool(
    name="process_write", category="process", approval="judge", types=True, input=True, terminal=False
)
PROCESS_SEND_KEYS: Final = Tool(name="process_send_keys", category="process", approval="judge", types=True, input=True)
PROCESS_KILL: Final = Tool(name="process_kill", category="process", approval="ask")
PROCESS_RESIZE: Final = Tool(name="process_resize", category="process", approval="judge", input=True)
PROCESS_SCREEN: Final = Tool(name="process_screen", category="process")
PROCESS_WAIT: Final = Tool(name="process_wait", category="process")
PROCESS_WATCH: Final = Tool(name="process_watch", category="process")
PROCESS_PIN: Final = Tool(name="process_pin", category="process")
RUN_SHELL: Final = Tool(name="run_shell", category="exec", approval="judge", starts=True)
SHELL_SESSION: Final = Tool(
    name="shell_session",
    category="exec",
    approval="judge",
    input=True,
    choice="action",
    acts={
        "start": EXECUTE_PTY,
        "exec": PROCESS_WRITE,
        "write": PROCESS_WRITE,
        "read": PROCESS_POLL,
        "resize": PROCESS_RESIZE,
        "kill": PROCESS_KILL,
        "list": PROCESS_LIST,
    },
)
SHELL_TOOL: Final = Tool(
    name="shell",
    category="exec",
    approval="judge",
    choice="op",
    acts={
        "execute": PROCESS_WRITE,
        "spawn": EXECUTE,
        "kill": PROCESS_KILL,
        "status": PROCESS_LIST,
        "output": PROCESS_LOG,
    },
)
SHELL_EXECUTE: Final = Tool(name="shell_execute", category="workspace", approval="judge", starts=True, rule=True)
EVALUATE_PYTHON: Final = Tool(name="evaluate_python", category="workspace", approval="judge", starts=True)
LS: Final = Tool(name="ls", category="workspace", files=True)
READ_FILE: Final = Tool(name="read_file", category="workspace", files=True)
GLOB: Final = Tool(name="glob", category="workspace", files=True)
GREP: Final = Tool(name="grep", category="workspace", files=True)
WRITE_FILE: Final = Tool(name="write_file", category="workspace", approval="judge", files=True)
EDIT_FILE: Final = Tool(name="edit_file", category="workspace", approval="judge", files=True)
RM: Final = Tool(name="rm", category="workspace", approval="judge", files=True)

TOOLS: Final = (
    EXECUTE,
    EXECUTE_PTY,
    PROCESS_LIST,
    PROCESS_POLL,
    PROCESS_LOG,
    PROCESS_WRITE,
    PROCESS_SEND_KEYS,
    PROCESS_KILL,
    PROCESS_RESIZE,
    PROCESS_SCREEN,
    PROCESS_WAIT,
    PROCESS_WATCH,
    PROCESS_PIN,
    RUN_SHELL,
    SHELL_SESSION,
    SHELL_TOOL,
    SHELL_EXECUTE,
    EVALUATE_PYTHON,
    LS,
    READ_FILE,
    GLOB,
    GREP,
    WRITE_FILE,
    EDIT_FILE,
    RM,
)
_BY_NAME: Final = {tool.name: tool for tool in TOOLS}
TYPING: Final = tuple(tool.name for tool in TOOLS if tool.types or any(act.types for act in tool.acts.values()))
"""Those whose calls type into a session, as records name them; a command that a shell is given is typed too."""

CHANGING: Final = tuple(tool.name for tool in TOOLS if tool.files and tool.asks)
"""Those that change files, as records name them."""


def tool_named(name: str) -> Tool:
    """The tool of a call or of a record; one that is not known asks always."""
    return _BY_NAME.get(name) or Tool(name=name, category="exec", approval="ask")
