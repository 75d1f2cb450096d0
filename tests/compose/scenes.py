"""What is done with the services, step by step: each says what it wants to see, and fails when it does not come."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from tests.compose import bases
from tests.compose.engines import CommandFailed, Engine

VICTIMS: Final = ("postgres", "supervisor", "worker")
BUILD_S: Final = 1_800.0
PATIENCE_S: Final = 180.0
DOWN_S: Final = 300.0
ASKED: Final = 3
"""The exit code of `send --wait` when a call waits for approval."""
CODE: Final = 9


@dataclass
class Step:
    """One row of the table."""

    name: str
    seconds: float = 0.0
    note: str = ""
    failure: str | None = None


@dataclass
class Run:
    """The steps so far, of one project."""

    engine: Engine
    say: Callable[[str], None]
    steps: list[Step] = field(default_factory=list[Step])
    stand_ins: list[str] = field(default_factory=list[str])

    @contextmanager
    def step(self, name: str) -> Generator[Step]:
        """Measure a step; what it raises is kept as its failure and raised on."""
        made = Step(name)
        self.steps.append(made)
        self.say(name)
        began = time.monotonic()
        try:
            yield made
        except BaseException as error:
            made.failure = str(error) or type(error).__name__
            raise
        finally:
            made.seconds = time.monotonic() - began

    def all(self) -> None:
        """Build it, bring it up, kill each in turn, take it down.

        Raises:
            CommandFailed: A step of it did not come to what it has to; its row says why.
        """
        with self.step("bases") as made:
            self.stand_ins = bases.made(self.engine, self.engine.directory)
            made.note = f"stand-ins: {', '.join(self.stand_ins)}" if self.stand_ins else "images of the engine"
        with self.step("build"):
            self.engine.composed("build", timeout=BUILD_S)
        with self.step("up"):
            self._up()
        for victim in VICTIMS:
            self._killed(victim)
        with self.step("down"):
            self.engine.composed("down", "--volumes", timeout=DOWN_S)
            if left := [name for name in VICTIMS if self.engine.container(name)]:
                raise CommandFailed(f"still there after `down`: {' '.join(left)}")

    def _up(self) -> None:
        if self.engine.kind == "docker":
            self.engine.composed("up", "--detach", "--wait", timeout=PATIENCE_S)
            return
        # Podman below 4.6 knows no condition, and without systemd looks after nobody's health: the order is kept here.
        services = yaml.safe_load((self.engine.directory / "docker-compose.yml").read_text())["services"]
        conditions = {
            name: on["condition"] for one in services.values() for name, on in one.get("depends_on", {}).items()
        }
        ready: dict[str, Callable[[str], bool]] = {
            "service_healthy": self.engine.healthy,
            "service_completed_successfully": self._completed,
        }
        for name in sorted(services, key=lambda name: (len(services[name].get("depends_on", {})), name)):
            self.engine.composed("up", "--detach", "--no-deps", "--no-build", name)
            self._until(f"{name} is up", lambda name=name: ready[conditions.get(name, "service_healthy")](name))

    def _completed(self, service: str) -> bool:
        if self.engine.seen(service, ".State.Status") not in {"exited", "stopped"}:
            return False
        if (code := self.engine.seen(service, ".State.ExitCode")) != "0":
            raise Failed(f"{service} ended with {code}: {self.engine.log(service)}")
        return True

    def _killed(self, victim: str) -> None:
        name = f"kill-{victim}"
        # The command is the supervisor's child, so it dies with that container and is told as lost.
        told = "lost" if victim == "supervisor" else f"exit code {CODE}"
        with self.step(f"{victim}: message, approval"):
            command = f"echo begun >>{name}.txt; until [ -e {name}.go ]; do sleep 0.1; done; exit {CODE}"
            self._shellback("send", "--conversation", name, "--wait", f"$ {command} &", ends=(ASKED,))
            (request,) = self._json("approvals", "list", "--json")
            self._shellback("approvals", "approve", request["id"])
            self._until("the command runs", lambda: self._begun(name) == 1)
            self._until("the start is answered", lambda: len(self._answers(name)) == 1)
        with self.step(f"{victim}: kill -9, back") as made:
            before = self.engine.seen(victim, ".State.StartedAt")
            if not self.engine.kill(victim):
                self._until("it is gone", lambda: self.engine.seen(victim, ".State.Running") == "false")
                self.engine.call("start", self.engine.container(victim) or victim)
                made.note = "started again by hand: what the engine killed it does not restart"
            self._until("another one runs", lambda: self.engine.seen(victim, ".State.StartedAt") != before)
            for service in VICTIMS:
                self._until(f"{service} is healthy", lambda service=service: self.engine.healthy(service))
        with self.step(f"{victim}: wake, one answer") as made:
            if victim != "supervisor":
                self.engine.call("exec", self.engine.container("supervisor") or "", "touch", f"/workspace/{name}.go")
            self._until("the end is told", lambda: len(self._answers(name)) > 1)
            self._until("nothing waits", self._at_rest)
            answers = self._answers(name)
            if len(answers) != 2 or told not in answers[1] or self._begun(name) != 1:
                raise CommandFailed(f"wanted one answer with {told!r} of a command that began once: {answers[1:]}")
            made.note = told

    def _at_rest(self) -> bool:
        found = self._json("queue", "--json")
        return not found["waiting"] and not found["running"]

    def _begun(self, name: str) -> int:
        words = ("exec", self.engine.container("supervisor") or "", "cat", f"/workspace/{name}.txt")
        return self.engine.call(*words).count("begun")

    def _answers(self, name: str) -> list[str]:
        """What the agent has said in a conversation, without the calls."""
        shown = self._json("conversations", "show", name, "--json")
        return [
            part["content"]
            for message in shown["messages"]
            if message["kind"] == "response"
            for part in message["parts"]
            if part["part_kind"] == "text"
        ]

    def _json(self, *words: str) -> Any:
        return json.loads(self._shellback(*words))

    def _shellback(self, *words: str, ends: tuple[int, ...] = (0,)) -> str:
        return self.engine.composed("exec", "-T", "worker", "shellback", *words, ends=ends)

    def _until(self, what: str, true: Callable[[], bool]) -> None:
        """Ask until it is so. Each asking takes the time that an engine needs to answer."""
        deadline = time.monotonic() + PATIENCE_S
        said = ""
        while time.monotonic() < deadline:
            try:
                if true():
                    return
                said = ""
            except Failed:
                raise
            except (CommandFailed, json.JSONDecodeError) as error:
                said = f"; last: {error}"
        logs = "".join(f"\n--- {service}\n{self.engine.log(service)}" for service in VICTIMS)
        raise CommandFailed(f"not within {PATIENCE_S:.0f} s: {what}{said}{logs}")


class Failed(CommandFailed):
    """Raised where waiting on is no use."""


def removed(engine: Engine, image: str, stand_ins: list[str]) -> None:
    """Take away what the project made, by its name; what is not there is no error."""
    project = f"label=com.docker.compose.project={engine.environ['COMPOSE_PROJECT_NAME']}"
    containers = ("ps", "--all"), ("rm", "--force", "--volumes")
    others = [((kind, "ls"), (kind, "rm")) for kind in ("volume", "network")]
    for listing, removing in (containers, *others):
        with suppress(CommandFailed):
            if found := engine.call(*listing, "--quiet", "--filter", project).split():
                engine.call(*removing, *found)
    for name in (image, *stand_ins):
        with suppress(CommandFailed):
            engine.call("image", "rm", name)
    # Podman keeps the first stage of the build, without a name; it has the label of what it begins with.
    with suppress(CommandFailed):
        engine.call("image", "prune", "--force", "--filter", f"label={bases.LABEL}=true")
