"""What policy knows about a tool: the fields that decide whether a person is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One tool: what it is, and whether a person is asked first: never, always, or as the call is judged.

    One that passes asks by itself where the file it is about may be a secret. `types` is whether its calls type;
    `input` whether they may be approved for all of a session, and `terminal` whether that needs one. `rule` is whether
    an approved call may be remembered as a rule. A tool that does several things has `acts`: by the value of its
    parameter `choice`, the tool that does no more than that.
    """

    name: str = ""
    category: Literal["exec", "process", "workspace"] = "exec"
    approval: Literal["pass", "ask", "judge"] = "pass"
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
    def metadata(self) -> dict[str, str]:
        """What observers and other toolsets are told."""
        return {"category": self.category}

    def act(self, args: Mapping[str, Any]) -> Tool:
        """The tool that a call amounts to: of one that does several things, the one that does just this."""
        return self.acts.get(str(args.get(self.choice)), ASKING) if self.acts else self


ASKING = Tool(name="a tool that is not known", approval="ask")
