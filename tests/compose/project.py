"""A project of compose in a directory of its own: the files as they are, and what a test has to set apart."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path
from typing import Final

import yaml

from tests.compose.engines import Engine, lower_limits
from tests.machines import free_port

ROOT: Final = Path(__file__).parents[2]
IMAGE: Final = "localhost/shellback-compose-test"


def copied(directory: Path) -> None:
    """Put there what the image is built from, as `.dockerignore` has it, and the files that say how."""
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line.startswith("!"):
            _copy(ROOT / line[1:], directory / line[1:])
    for name in (".dockerignore", "Dockerfile", "docker-compose.yml"):
        _copy(ROOT / name, directory / name)


def set_apart(engine: Engine) -> str:
    """Give it a name, a port, a password and an image of its own, offline and with commands; returns the image."""
    name = f"shellback-test-{secrets.token_hex(3)}"
    image = f"{IMAGE}:{name}"
    engine.environ["COMPOSE_PROJECT_NAME"] = name
    lines = [f"POSTGRES_PASSWORD={secrets.token_hex(24)}", "MODEL=offline", "ENABLE_EXECUTE=true", "BACKEND=host"]
    (engine.directory / ".env").write_text("\n".join([*lines, ""]))
    # Into the copy, since a second file is merged by each its way.
    path = engine.directory / "docker-compose.yml"
    whole = yaml.safe_load(path.read_text())
    for role, service in whole["services"].items():
        if role == "postgres":
            service["ports"] = [f"127.0.0.1:{free_port()}:5432"]
        else:
            service["image"] = image
        if limits := lower_limits():
            service["ulimits"] = {**service.get("ulimits", {}), **limits}
        if engine.kind == "podman":
            service.get("healthcheck", {}).pop("start_interval", None)  # it has none for the start
    path.write_text(yaml.safe_dump(whole))
    return image


def _copy(source: Path, to: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, to, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, to)
