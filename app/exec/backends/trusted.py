"""Names that a person's programs run or trust without being asked: what stays read-only in a writable workspace.

The test for a row of `PROTECTED`: a program of the person's runs what stands there merely because they enter the
directory, open it in an editor, start a shell or another agent, or use git. Files that run when somebody asks for it
(`Makefile`, `package.json`, pipelines that run after a push) are work, and texts that tell an agent what to do are not
run: both stay writable. Rows for the root are not repeated below it: editors and agents take them from the directory
that is opened.

Considered and left: `.gitmodules` (git takes commands for submodules from its own configuration only), `.editorconfig`
and `.tool-versions` (no commands), and how a project is built and checked: that is work, though editors may do it
(`.npmrc`, `.yarnrc.yml`, `.cargo`, `flake.nix`, `.eslintrc.js` and the like). Hooks that a person installed run work
as well; what says which programs they run is here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from shellback.exec.supervisor.sandbox.stubs import SOCKET

Where = Literal["root", "repository", "worktree"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One name that is protected and why: in the workspace's root, in every repository, or in every linked worktree.

    `missing`: what stands there while commands run if there is nothing: an empty directory (None); for the name of a
    file a `SOCKET`, which commands see as nothing; in git directories a file with these bytes. What is `rare` is only
    protected where it exists: each that stands in for nothing is in everybody's listings while commands run.
    """

    where: Where
    name: str
    why: str
    missing: bytes | None = None
    rare: bool = False


DOT_GIT: Final = Rule("root", ".git", "a repository of a command's making has hooks and configuration of its making")
HEAD: Final = Rule("root", "HEAD", "without a .git, HEAD, objects and refs would make the root itself a repository")

PROTECTED: Final[tuple[Rule, ...]] = (
    DOT_GIT,
    HEAD,
    Rule("repository", "hooks", "programs that git runs at commit, checkout, merge and push"),
    Rule("repository", "config", "names programs that git runs, also for git status: fsmonitor, pager, filters", b""),
    Rule("repository", "config.worktree", "the same as config, where worktreeConfig is on", b""),
    Rule("repository", "commondir", "tells git to take hooks and config from another directory", b".\n"),
    Rule("worktree", "commondir", "tells git to take hooks and config from another directory", b""),
    Rule("worktree", "config.worktree", "the same as config, where worktreeConfig is on", b""),
    Rule("root", ".husky", "git hooks, by core.hooksPath"),
    Rule("root", ".githooks", "git hooks, by core.hooksPath"),
    Rule("root", ".pre-commit-config.yaml", "programs of git hooks, where pre-commit or prek is installed", rare=True),
    Rule("root", "prek.toml", "programs of git hooks, where prek is installed", rare=True),
    *(
        Rule("root", f"{dot}lefthook{local}.{kind}", "programs of git hooks, where Lefthook is installed", rare=True)
        for dot in ("", ".")
        for local in ("", "-local")
        for kind in ("yml", "yaml", "toml", "json", "jsonc")
    ),
    Rule("root", ".overcommit.yml", "programs of git hooks, where Overcommit is installed", rare=True),
    Rule("root", "hk.pkl", "programs of git hooks, where hk is installed", rare=True),
    Rule("root", ".trunk", "programs of git hooks, where Trunk is installed", rare=True),
    Rule(
        "root",
        ".gitconfig",
        "configuration of git where the workspace is a home; often included by a repository's",
        SOCKET,
    ),
    Rule("root", ".shellback", "configuration of Shellback"),
    Rule("root", ".vscode", "tasks that run when the folder is opened; paths of interpreters and tools"),
    Rule("root", ".idea", "run configurations and start-up tasks"),
    Rule("root", ".zed", "tasks, and paths of language servers", rare=True),
    Rule("root", ".helix", "programs that Helix starts as language servers", rare=True),
    Rule("root", ".fleet", "run configurations", rare=True),
    Rule("root", ".devcontainer", "commands that run on the machine before the container starts"),
    Rule("root", ".devcontainer.json", "commands that run on the machine before the container starts", SOCKET),
    Rule("root", ".exrc", "commands that vi runs when it starts here", rare=True),
    Rule("root", ".vimrc", "commands that Vim runs when it starts, with exrc on or in a home", rare=True),
    Rule("root", ".nvimrc", "commands that Neovim runs when it starts here", rare=True),
    Rule("root", ".nvim.lua", "code that Neovim runs when it starts here", rare=True),
    Rule("root", ".dir-locals.el", "code that Emacs runs when a file is opened", rare=True),
    Rule("root", ".dir-locals-2.el", "the same as .dir-locals.el", rare=True),
    Rule("root", ".gdbinit", "commands that GDB runs when it starts here, where auto-load allows it", rare=True),
    Rule("root", ".lldbinit", "commands that LLDB runs when it starts here, where that is switched on", rare=True),
    Rule("root", ".mcp.json", "programs that agents start as servers", SOCKET),
    Rule("root", ".claude", "hooks, permissions and servers of an agent"),
    Rule("root", ".codex", "permissions and servers of an agent"),
    Rule("root", ".gemini", "permissions and servers of an agent"),
    Rule("root", ".cursor", "servers and hooks of an agent"),
    Rule("root", ".windsurf", "servers and workflows of an agent", rare=True),
    Rule("root", ".kiro", "servers and hooks of an agent", rare=True),
    Rule("root", ".qwen", "permissions and servers of an agent", rare=True),
    Rule("root", ".opencode", "plugins that an agent loads", rare=True),
    Rule("root", "opencode.json", "permissions and servers of an agent", rare=True),
    Rule("root", "opencode.jsonc", "permissions and servers of an agent", rare=True),
    *(
        Rule("root", name, "servers of an agent, also of languages", rare=True)
        for name in ("crush.json", ".crush.json")
    ),
    *(Rule("root", name, "servers of an agent", rare=True) for name in (".amazonq", ".factory", ".junie", ".trae")),
    Rule("root", ".continue", "servers of an agent", rare=True),
    Rule("root", ".roo", "servers of an agent", rare=True),
    Rule("root", ".aider.conf.yml", "commands that an agent runs after each edit", rare=True),
    Rule("root", ".envrc", "shell code that direnv runs on entering the directory", SOCKET),
    Rule("root", ".direnv", "shell code that direnv loads from its cache without asking", rare=True),
    *(
        Rule("root", name, "hooks of mise, which trusts a path and not what stands there", rare=True)
        for name in ("mise.toml", ".mise.toml", "mise.local.toml", ".mise.local.toml", ".mise")
    ),
    Rule("root", ".autoenv.zsh", "shell code that an autoenv plugin runs on entering the directory", rare=True),
    Rule("root", ".bashrc", "runs when a shell starts, where the workspace is a home", SOCKET),
    Rule("root", ".bash_profile", "runs at login, where the workspace is a home", SOCKET),
    Rule("root", ".bash_login", "runs at login, where the workspace is a home", SOCKET),
    Rule("root", ".bash_logout", "runs at logout, where the workspace is a home", rare=True),
    Rule("root", ".bash_aliases", "runs when a shell starts, where the workspace is a home", SOCKET),
    Rule("root", ".profile", "runs at login, where the workspace is a home", SOCKET),
    Rule("root", ".zshrc", "runs when a shell starts, where the workspace is a home", SOCKET),
    Rule("root", ".zshenv", "runs when a shell starts, where the workspace is a home", SOCKET),
    Rule("root", ".zprofile", "runs at login, where the workspace is a home", SOCKET),
    Rule("root", ".zlogin", "runs at login, where the workspace is a home", rare=True),
    Rule("root", ".zlogout", "runs at logout, where the workspace is a home", rare=True),
    Rule("root", ".inputrc", "keys bound to commands, where the workspace is a home", rare=True),
    Rule("root", ".ripgreprc", "names a program that rg runs (--pre), where the workspace is a home", rare=True),
    Rule("root", ".tmux.conf", "commands that tmux runs when it starts, where the workspace is a home", rare=True),
    Rule("root", ".screenrc", "commands that screen runs when it starts, where the workspace is a home", rare=True),
    Rule("root", ".ssh", "keys that let somebody in, where the workspace is a home"),
)
"""In `.git` directories and files, bare repositories, submodules' directories (`repository`) and linked worktrees'
(`worktree`), wherever they are in the workspace; all else in its root only."""
