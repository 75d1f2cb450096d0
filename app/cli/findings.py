"""`shellback findings`: things in a workspace that a person must inspect."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from shellback.cli.options import conversation_option, finding_ids
from shellback.cli.shared import Columns, Commands, columns, json_option, lists, opened, show, stamp, table_lines
from shellback.client.caller import me
from shellback.client.freshness import Freshness
from shellback.exec.core.display import age, folded, request_lines, visible_line

if TYPE_CHECKING:
    from shellback.exec.core.findings import Finding
    from shellback.wiring.wiring import Place


@click.group(cls=Commands)
def findings() -> None:
    """List, show or acknowledge findings: things in a workspace that you must inspect.

    A finding is open until a person acknowledges it. Until then `ps`, `chat`, `approvals list` and `doctor` mention
    it. The beginning of an ID is enough.

    \b
      shellback findings list
      shellback findings show fq3a
      shellback findings ack fq3a
      shellback findings ack --all
    """  # noqa: D301 - \b is click's mark for text that keeps its lines


@findings.command("list")
@conversation_option
@click.option("--all", "everything", is_flag=True, help="Include acknowledged findings.")
@lists()
def list_(conversation: str | None, everything: bool) -> None:
    """List open findings, oldest first."""
    from shellback.storage import findings as rows

    with opened() as where:
        found = where.database.read_now(rows.find, conversation_id=conversation, everything=everything)
        fresh = Freshness(where)
    now = time.time()
    headings: Columns[Finding] = {
        "ID": "id",
        "KIND": "kind",
        "CONVERSATION": "conversation_id",
        "AGE": lambda one: age(now - one.created_at),
        "STATE": lambda one: "open" if one.open else "acknowledged",
        "PATH": "path",
    }
    told = "`shellback findings show ID` says what was found and what to do"
    none = "no findings" if everything else "no open findings (--all includes acknowledged ones)"
    lines = [*table_lines(found, headings), told, *fresh.lines()] if found else [none]
    show([asdict(one) | fresh.fact() for one in found], lines)


@findings.command("show")
@click.argument("finding", metavar="ID", shell_complete=finding_ids)
@json_option
def show_(finding: str) -> None:
    """Show one finding in full: what was found, where it is kept, and what to do."""
    from shellback.storage import findings as rows

    with opened() as where:
        found = where.database.read_now(rows.get, finding)
    told = {
        "finding": found.id,
        "kind": found.kind,
        "path": found.path,
        "met": found.detail,
        "kept": found.kept,
        "conversation": found.conversation_id,
        "session": found.session_id,
        "found": stamp(found.created_at),
        "to do": remedy(found),
        "acknowledged": found.acknowledged_at and f"{stamp(found.acknowledged_at)} by {found.acknowledged_by}",
    }
    lines = folded(request_lines({key: value for key, value in told.items() if value}), columns())
    show(asdict(found) | {"remedy": remedy(found)}, lines)


@findings.command()
@click.argument("finding", metavar="ID", required=False, shell_complete=finding_ids)
@click.option("--all", "everything", is_flag=True, help="Acknowledge every open finding.")
@json_option
def ack(finding: str | None, everything: bool) -> None:
    """Acknowledge a finding, so that it is no longer mentioned. Nothing in the workspace changes."""
    from shellback.storage import findings as rows

    if (finding is None) != everything:
        raise click.UsageError("give one ID, or --all")
    with opened() as where:
        ids = (
            [where.database.read_now(rows.get, finding).id]
            if finding is not None
            else [one.id for one in where.database.read_now(rows.find)]
        )
        count = where.database.write_now(rows.acknowledge, ids, by=me(), at=time.time())
    said = f"{count} acknowledged" if count or everything else f"{ids[0]} was already acknowledged"
    show({"ids": ids, "acknowledged": count}, [said])


_REMEDIES = {
    "repository": "Read what is kept. To use it all the same, end the conversation's processes (`shellback ps`), then"
    " move it back to its path: what is there when no command runs counts as yours.",
    "gitlink": "git also asks the nested repository, here and in every parent. If you did not want it:"
    " `git rm --cached PATH` in the repository around it.",
    "hard_link": "Compare the file with a version that you trust; remove the other name.",
    "lost_mount": "Compare the file with a version that you trust before you use git or a shell there.",
    "unseen": "Look at what is new in the workspace (`find -newer`, `git status` elsewhere on a copy) before you use"
    " git there.",
}


def remedy(one: Finding) -> str:
    """The remedy of a finding, in one or two sentences; `PATH` is the finding's."""
    return _REMEDIES.get(one.kind, "Inspect the path before you use it.")


def open_line(where: Place, conversation: str | None = None) -> str | None:
    """One line for people about open findings, of one conversation or of all; None if there are none."""
    from shellback.storage import findings as rows

    count = where.database.read_now(rows.open_count, conversation_id=conversation)
    return f"{count} open finding(s) in the workspace: see `shellback findings list`" if count else None


def news(payload: dict[str, str]) -> str:
    """The line about a new finding."""
    return visible_line(f"! {payload['text']}: shellback findings show {payload['id']}")
