"""Decides whether a session waits for input, by its reading process, its silence and its last line.

Text alone is not enough: a program may compute after it printed a question. A blocked read is enough; polling the
terminal among other things counts only with a prompt, or if the terminal delivers single keys.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from shellback.exec.core.answers import Look
from shellback.exec.core.errors import ExecError, PasswordWanted, SessionNotFound
from shellback.exec.core.model import SHELL, Session, SessionState
from shellback.exec.link.supervised import Supervised
from shellback.exec.log.output import OutputLog, Slice
from shellback.exec.policy.rules.carriers import SHELLS, name_of, names

SETTLED_S: Final = 0.2
"""A program that was silent for less is inspected again: it may go on printing."""
CAREFUL_S: Final = 1.0
"""Silence that is needed of a program that polls: it may go on printing."""
DOUBT_S: Final = 2.0
"""Silence that is needed of a reader without a prompt: another process may work beside it."""
BLIND_S: Final = 15.0
"""If the reader is unknown, a prompt and this silence are reported, as not sure."""
FIRST_S: Final = 0.3
LONGEST_S: Final = 5.0
"""Pause before an inspection: the first and the longest."""
RETRY_S: Final = 1.0
PROMPT_CHARS: Final = 200
_LINES: Final = 12

_ASKS: Final = re.compile(
    r"(?:[?:>$#\u276f\u203a\u00bb]|(?<!\d)%|[\[(] ?(?:y|n|yes|no)\b[^\[\]()]{0,40}[\])][?:.]?"
    r"|--more--.{0,20}|\(end\)|(?:press|hit|type) .{0,40}(?:enter|return|key|continue|quit|abort|more).{0,30}"
    r"|^\([a-z][\w .-]{0,20}\)|^\.\.\.)$",
    re.IGNORECASE,
)
"""The end of a line that asks for something."""
_MENU: Final = re.compile(
    r"^\s*(?:[\u276f\u203a\u25b8\u25ba\u27a4\u25c9\u25cf\u25c6] |\? )|arrow keys|space> to|space to (?:select|toggle)",
    re.IGNORECASE,
)
"""Text near the end of a menu that is redrawn."""
_SECRET: Final = re.compile(
    r"^[^$#%=~^\"'`<>]{0,80}"
    r"(?:pass ?(?:word|phrase|code)|\bpin\b|\b(?:otp|2fa|mfa|totp)\b|\b(?:secret|token|api key)\b"
    r"|(?:verification|security|one-time|login) code"
    r"|passwort|kennwort|contraseña|mot de passe|senha|пароль|密码|パスワード)"
    r"[^$#%=~^\"'`<>]{0,60}[:?\u203a] ?(?:\[[^\]]*hidden[^\]]*\]|[*\u2022\u25cf\u25aa]+)?$",
    re.IGNORECASE,
)
"""A line of a program that asks for a secret and hides it itself; never a line typed into a shell or editor."""
_SHELLS: Final = SHELLS | names(
    "ssh mosh telnet su sudo doas login screen tmux script expect docker podman kubectl nsenter chroot busybox"
    " machinectl nerdctl lxc pwsh nu xonsh elvish rc es rlwrap nc ncat socat"
)
"""Programs that run typed lines, here or elsewhere, or start one that does."""
_WORDS: Final = re.compile(r"[^\s;|&()<>'\"`$]+")
_NO_TEXT: Final = b"\x03\x04\x1b"
"""C-c, C-d and Escape type nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A session waits for input, with the evidence.

    `evidence` is `read`: a process is blocked in a read; `poll`: a process polls its terminal or stdin, and shows a
    prompt or takes single keys; `echo_off`: the terminal hides input; `silence`: the reader is unknown, but there is
    a prompt and no output since. `since_s` is the silence. With `password` only a person may type. Unless `sure`, the
    program may be busy.
    """

    evidence: Literal["read", "poll", "echo_off", "silence"]
    prompt: str
    since_s: float
    password: bool
    sure: bool
    program: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A session and its output now.

    With `handed_over` a callback reports the end. `err` is a separate stderr; `warning` is about the conversation.
    With `waiting` the call returned because the command waits for input. `findings` are sentences: those of the end,
    and those of other commands of the conversation that were not reported yet.
    """

    session: Session
    output: Slice
    err: Slice | None = None
    handed_over: bool = False
    warning: str = ""
    waiting: Waiting | None = None
    findings: tuple[str, ...] = ()


class Looked(Protocol):
    """The part of an engine that this module uses."""

    supervised: Supervised

    def output(self, session: Session, *, err: bool = False) -> OutputLog:
        """The log of a session."""
        ...


def takes_input(session: Session) -> bool:
    """Whether it is live, with a terminal or an open stdin."""
    return session.live and session.stdin_open


async def waiting(engine: Looked, session: Session) -> Waiting | None:
    """What a session waits for now; None if it does not wait or this is unknown. Changes nothing."""
    if not takes_input(session) or session.state is not SessionState.RUNNING:
        return None
    look = await look_at(engine, session)
    if look is not None and look.quiet_s < SETTLED_S and (look.how != "none" or _hidden(look)):
        await asyncio.sleep(SETTLED_S - look.quiet_s + 0.01)
        look = await look_at(engine, session)
    return None if look is None or look.quiet_s < SETTLED_S else judged(look, _last_lines(engine, session))


async def until_waiting(engine: Looked, session: Session) -> Waiting | None:
    """Wait until the session surely waits for input; None if it ends. Inspects it during silence, ever less often."""
    size, pause = 0, FIRST_S
    while takes_input(session):
        try:
            grown = await engine.supervised.port.grown(
                session.id, size, err_beyond=None, rest_s=FIRST_S, timeout_s=pause
            )
        except SessionNotFound:
            return None
        except ExecError:
            await asyncio.sleep(RETRY_S)
            continue
        if grown.ended:
            return None
        if grown.size > size:
            size, pause = grown.size, FIRST_S
            continue
        look = await look_at(engine, session)
        found = None if look is None else judged(look, _last_lines(engine, session))
        if found is not None and found.sure:
            return found
        pause = min(pause * 1.5, LONGEST_S)
    return None


Ended = asyncio.Future[Session | None]
"""Resolved with the ended session, or with None by `give_up`."""


async def joined(
    engine: Looked, session: Session, ended: Ended, *, patience_s: float, until_input: bool
) -> tuple[Session | None, Waiting | None]:
    """Wait for the end; without it the session is None after `patience_s`, or by `give_up`.

    With `until_input` also when it waits for input, which is the second value. Cancelling ends only the waiting.
    """
    if ended.done():
        return ended.result(), None
    timer = asyncio.get_running_loop().call_later(patience_s, give_up, ended)
    asked = asyncio.ensure_future(until_waiting(engine, session)) if until_input else None
    if asked is not None:
        asked.add_done_callback(lambda task: give_up(ended) if _found(task) else None)
    try:
        end = await ended
        return end, _found(asked) if end is None and asked is not None and asked.done() else None
    finally:
        timer.cancel()
        if asked is not None:
            asked.cancel()


def give_up(ended: Ended) -> None:
    """End the wait, unless it is over."""
    if not ended.done():
        ended.set_result(None)


def _found(asked: asyncio.Task[Waiting | None]) -> Waiting | None:
    return None if asked.cancelled() or asked.exception() is not None else asked.result()


def judged(look: Look, lines: list[str]) -> Waiting | None:
    """Judge an inspection with the last lines of output; the last line is empty after a newline."""
    terminal, quiet = look.terminal, look.quiet_s
    raw = terminal is not None and not terminal.canonical
    last = lines[-1].rstrip() if lines else ""
    if raw and len(last) > PROMPT_CHARS:
        last = ""  # drawn on the whole screen, not a line
    asks = _ASKS.search(last) is not None
    password = _hidden(look) and look.how != "none" and (not raw or _SECRET.search(last) is not None)
    evidence: Literal["read", "poll", "echo_off", "silence"]
    match look.how:
        case "read":
            evidence = "read"
            sure = quiet >= (SETTLED_S if asks or (last and not raw) else DOUBT_S) and bool(last or not raw)
        case "poll":
            asks = asks or (raw and any(_MENU.search(line) for line in lines))
            if not (asks or raw or password):
                return None
            evidence, sure = "poll", asks and quiet >= CAREFUL_S
        case "unknown" if password:
            evidence, sure = "echo_off", quiet >= CAREFUL_S
        case "unknown" if asks and quiet >= BLIND_S:
            evidence, sure = "silence", False
        case _:
            return None
    return Waiting(
        evidence=evidence,
        prompt=last[-PROMPT_CHARS:] if asks or look.how != "poll" else "",
        since_s=round(quiet, 1),
        password=password,
        sure=sure or (password and look.how != "unknown"),
        program=look.name,
    )


def shown(found: Waiting, session: Session) -> dict[str, object]:
    """The finding as JSON for the model, with advice."""
    return {
        "evidence": found.evidence,
        "prompt": found.prompt,
        "since_seconds": found.since_s,
        "password": found.password,
        "program": found.program,
        "what_to_do": advice(found, session),
    }


def advice(found: Waiting, session: Session) -> str:
    """What the model should do."""
    if found.password:
        return (
            "it asks for a password, which is not yours to type: tell the person to type it in a terminal with "
            f"`shellback attach {session.id}`, or end it with process_kill"
        )
    how = "process_send_keys or process_write" if session.pty else "process_write"
    if not found.sure:
        return f"it takes input, and may be busy all the same: look at what it shows before you answer with {how}"
    return f"answer with {how}, or end it with process_kill"


async def check_typing(engine: Looked, session: Session, data: bytes) -> None:
    """Raise PasswordWanted if a model would type other than C-c, C-d and Escape at a password prompt."""
    if not session.pty or not takes_input(session) or not data.strip(_NO_TEXT):
        return
    look = await look_at(engine, session)
    found = None if look is None or not _hidden(look) else judged(look, _last_lines(engine, session))
    if found is not None and found.password:
        raise PasswordWanted(f"nothing was typed into session {session.id}: {advice(found, session)}")


async def shell_reads(engine: Looked, session: Session) -> bool:
    """Whether a shell may read what is typed into a session now; True if this is unknown."""
    if session.kind == SHELL or not _SHELLS.isdisjoint(map(name_of, _WORDS.findall(session.command))):
        return True
    look = await look_at(engine, session)
    return look is None or look.how in {"unknown", "none"} or look.name in _SHELLS


def _hidden(look: Look) -> bool:
    return look.terminal is not None and not look.terminal.echo


def _last_lines(engine: Looked, session: Session) -> list[str]:
    text = engine.output(session).last_lines(_LINES, 2_000).text
    return text.split("\n")


async def look_at(engine: Looked, session: Session) -> Look | None:
    """What a session does now; None if unknown."""
    try:
        return await engine.supervised.port.look(session.id)
    except ExecError:
        return None
