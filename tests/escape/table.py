"""All probes."""

from __future__ import annotations

from typing import Final

from tests.escape import bombs, files, networks, privileges, processes, protected
from tests.escape.probe import Probe

PROBES: Final[tuple[Probe, ...]] = tuple(
    probe for module in (files, processes, networks, privileges, protected, bombs) for probe in module.probe.all
)
