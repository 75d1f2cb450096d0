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


def _root(why: str, *names: str, missing: bytes | None = None, rare: bool = False) -> tuple[Rule, ...]:
    """The same rule for several names in the root."""
    return tuple(Rule("root", name, why, missing, rare) for name in names)


_LEFTHOOK: Final = [
    f"{dot}lefthook{local}.{kind}"
    for dot in ("", ".")
    for local in ("", "-local")
    for kind in ("yml", "yaml", "toml", "json", "jsonc")
]

PROTECTED: Final[tuple[Rule, ...]] = (
    DOT_GIT,
    HEAD,
    Rule("repository", "hooks", "programs that git runs at commit, checkout, merge and push"),
    Rule("repository", "config", "names programs that git runs, also for git status: fsmonitor, pager, filters", b""),
    Rule("repository", "config.worktree", "the same as config, where worktreeConfig is on", b""),
    Rule("repository", "commondir", "tells git to take hooks and config from another directory", b".\n"),
    Rule("worktree", "commondir", "tells git to take hooks and config from another directory", b""),
    Rule("worktree", "config.worktree", "the same as config, where worktreeConfig is on", b""),
    *_root("git hooks, by core.hooksPath", ".husky", ".githooks"),
    *_root("programs of git hooks, where pre-commit or prek is installed", ".pre-commit-config.yaml", rare=True),
    *_root("programs of git hooks, where prek is installed", "prek.toml", rare=True),
    *_root("programs of git hooks, where Lefthook is installed", *_LEFTHOOK, rare=True),
    *_root("programs of git hooks, where Overcommit is installed", ".overcommit.yml", rare=True),
    *_root("programs of git hooks, where hk is installed", "hk.pkl", rare=True),
    *_root("programs of git hooks, where Trunk is installed", ".trunk", rare=True),
    *_root(
        "configuration of git where the workspace is a home; often included by a repository's",
        ".gitconfig",
        missing=SOCKET,
    ),
    *_root("configuration of Shellback", ".shellback"),
    *_root("tasks that run when the folder is opened; paths of interpreters and tools", ".vscode"),
    *_root("run configurations and start-up tasks", ".idea"),
    *_root("tasks, and paths of language servers", ".zed", rare=True),
    *_root("programs that Helix starts as language servers", ".helix", rare=True),
    *_root("run configurations", ".fleet", rare=True),
    *_root("commands that run on the machine before the container starts", ".devcontainer"),
    *_root("commands that run on the machine before the container starts", ".devcontainer.json", missing=SOCKET),
    *_root("commands that vi runs when it starts here", ".exrc", rare=True),
    *_root("commands that Vim runs when it starts, with exrc on or in a home", ".vimrc", rare=True),
    *_root("commands that Neovim runs when it starts here", ".nvimrc", rare=True),
    *_root("code that Neovim runs when it starts here", ".nvim.lua", rare=True),
    *_root("code that Emacs runs when a file is opened", ".dir-locals.el", rare=True),
    *_root("the same as .dir-locals.el", ".dir-locals-2.el", rare=True),
    *_root("commands that GDB runs when it starts here, where auto-load allows it", ".gdbinit", rare=True),
    *_root("commands that LLDB runs when it starts here, where that is switched on", ".lldbinit", rare=True),
    *_root("programs that agents start as servers", ".mcp.json", missing=SOCKET),
    *_root("hooks, permissions and servers of an agent", ".claude"),
    *_root("permissions and servers of an agent", ".codex", ".gemini"),
    *_root("servers and hooks of an agent", ".cursor"),
    *_root("servers and workflows of an agent", ".windsurf", rare=True),
    *_root("servers and hooks of an agent", ".kiro", rare=True),
    *_root("permissions and servers of an agent", ".qwen", "opencode.json", "opencode.jsonc", rare=True),
    *_root("plugins that an agent loads", ".opencode", rare=True),
    *_root("servers of an agent, also of languages", "crush.json", ".crush.json", rare=True),
    *_root("servers of an agent", ".amazonq", ".factory", ".junie", ".trae", ".continue", ".roo", rare=True),
    *_root("commands that an agent runs after each edit", ".aider.conf.yml", rare=True),
    *_root("shell code that direnv runs on entering the directory", ".envrc", missing=SOCKET),
    *_root("shell code that direnv loads from its cache without asking", ".direnv", rare=True),
    *_root(
        "hooks of mise, which trusts a path and not what stands there",
        "mise.toml", ".mise.toml", "mise.local.toml", ".mise.local.toml", ".mise", rare=True,
    ),
    *_root("shell code that an autoenv plugin runs on entering the directory", ".autoenv.zsh", rare=True),
    *_root(
        "runs when a shell starts, where the workspace is a home",
        ".bashrc", ".bash_aliases", ".zshrc", ".zshenv", missing=SOCKET,
    ),
    *_root(
        "runs at login, where the workspace is a home",
        ".bash_profile", ".bash_login", ".profile", ".zprofile", missing=SOCKET,
    ),
    *_root("runs at logout, where the workspace is a home", ".bash_logout", ".zlogout", rare=True),
    *_root("runs at login, where the workspace is a home", ".zlogin", rare=True),
    *_root("keys bound to commands, where the workspace is a home", ".inputrc", rare=True),
    *_root("names a program that rg runs (--pre), where the workspace is a home", ".ripgreprc", rare=True),
    *_root("commands that tmux runs when it starts, where the workspace is a home", ".tmux.conf", rare=True),
    *_root("commands that screen runs when it starts, where the workspace is a home", ".screenrc", rare=True),
    *_root("keys that let somebody in, where the workspace is a home", ".ssh"),
)  # fmt: skip
"""In `.git` directories and files, bare repositories, submodules' directories (`repository`) and linked worktrees'
(`worktree`), wherever they are in the workspace; all else in its root only."""
