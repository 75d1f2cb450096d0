"""Our backends as workspaces of Pydantic AI: what any tool that uses `ctx.workspace` runs in."""
