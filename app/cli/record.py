"""`shellback record`: the output of a terminal, to be played."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shellback.cli.options import session_ids
from shellback.cli.processes import find_session
from shellback.cli.shared import Refused, asked, opened
from shellback.client.processes import find_end
from shellback.client.recording import MOST, Recording
from shellback.exec.core.display import visible_line
from shellback.exec.core.model import Session
from shellback.exec.core.ports import SupervisorPort

if TYPE_CHECKING:
    from shellback.wiring.wiring import Place


@click.command()
@click.argument("session_id", metavar="ID", shell_complete=session_ids)
@click.option("-o", "--output", "to", type=click.Path(path_type=Path), help="Write a new file. Default: print.")
@click.option("--follow", "-f", is_flag=True, help="Go on with new output until the process ends, or Ctrl-C.")
@click.option("--v2", is_flag=True, help="Write version 2 of the format, for players of before 2025.")
def record(session_id: str, to: Path | None, follow: bool, v2: bool) -> None:
    """Record the terminal of a process as an asciicast, version 3. The beginning of an ID is enough.

    The recording begins with the process. Secrets are hidden as in `logs`; sequences that make a terminal answer or
    write its clipboard are left out. Times are stored to about a second; with --follow, new output has exact times.
    What a person typed is not in it, unless the program showed it.

    \b
      shellback record xtmc -o build.cast
      shellback record --v2 xtmc -o build.cast     asciinema play build.cast
      shellback record -f xtmc -o live.cast        until the process ends
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    with opened() as where:
        session = find_session(where, session_id)
        recording = Recording(where, session, version=2 if v2 else 3)
        with _written(to) as write:
            write(recording.begin())
            if follow and session.live:
                absent = "{error}: what was recorded until now is kept; start a worker (shellback worker), then repeat"
                asked(where, lambda port: _follow(where, port, session, recording, write), absent)
            else:
                write(recording.end(session.end))
    if recording.full:
        click.echo(f"the recording ends early: it has {MOST} characters, which is the limit", err=True)


Write = Callable[[Iterable[str]], None]


@contextlib.contextmanager
def _written(to: Path | None) -> Generator[Write]:
    """What writes lines to a new file that only its owner reads, or to standard output."""
    if to is None:

        def echo(lines: Iterable[str]) -> None:
            for line in lines:
                click.echo(line, nl=False)

        yield echo
        return
    try:
        file = os.fdopen(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w")
    except FileExistsError:
        raise Refused(f"{visible_line(str(to))} exists: give the name of a new file") from None
    except OSError as error:
        raise Refused(f"{visible_line(str(to))} cannot be written: {error.strerror}; give another name") from None
    with file:

        def write(lines: Iterable[str]) -> None:
            file.writelines(lines)
            file.flush()

        yield write


async def _follow(where: Place, port: SupervisorPort, session: Session, recording: Recording, write: Write) -> None:
    from shellback.exec.terminals.attaching import Attachment

    attachment, ended = Attachment(port, session, where.home), False
    while not (ended or recording.full):
        ended = (await attachment.grown(recording.offset, None)).ended
        write(recording.more(time.time()))
    if ended:
        write(recording.end(await find_end(where, attachment)))
