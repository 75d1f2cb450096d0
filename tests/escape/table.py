"""All probes."""

from __future__ import annotations

from typing import Final

from tests.escape import bombs, containers, files, networks, privileges, processes, protected
from tests.escape.probe import Probe

_MODULES: Final = (files, processes, networks, privileges, protected, bombs, containers)
PROBES: Final[tuple[Probe, ...]] = tuple(probe for module in _MODULES for probe in module.probe.all)
