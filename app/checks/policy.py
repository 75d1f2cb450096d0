"""What may run without a person: the keys, and the operator's file of rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from shellback.checks.check import Check
from shellback.exec.core.errors import ExecError

if TYPE_CHECKING:
    from shellback.settings import Settings


def policy(settings: Settings, *, sandboxed: bool) -> list[Check]:
    """The keys and the rules, as a worker would take them; `sandboxed`: a profile holds commands to reading."""
    return list(_checks(settings, sandboxed=sandboxed))


def _checks(settings: Settings, *, sandboxed: bool) -> Iterator[Check]:
    if settings.trust_classifier:
        yield Check(
            "classifier",
            "warn",
            "TRUST_CLASSIFIER is on: where there is no sandbox, commands run without a person because they look"
            " read-only, and nothing holds them to it",
            "set BACKEND=bubblewrap and TRUST_CLASSIFIER=false",
        )
    elif settings.auto_approve == "off":
        yield Check("classifier", "ok", "AUTO_APPROVE=off: a person is asked about every command")
    elif not sandboxed:
        yield Check("classifier", "ok", "a person is asked about every command: no sandbox holds one to reading")
    else:
        yield Check("classifier", "ok", "read-only commands run by themselves in the read-only profile of a sandbox")
    from shellback.exec.policy.rules.file import load

    try:
        rules = load(settings.policy)
    except ExecError as error:
        yield Check("rules", "fail", str(error))
        return
    where = settings.policy or "no file of rules"
    yield Check("rules", "ok", f"{where}: {len(rules.rules)} rules; tier {rules.tiers.default}")
