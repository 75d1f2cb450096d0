"""Thousands of processes under random kills: `python -m chaos.soak`."""

from __future__ import annotations

from typing import Final

ENVIRON: Final = {
    "AGENT": "chaos.soak.batch_agent:agent",
    "MODEL": "",
    "WAKES_PER_HOUR": "3600",
    "CHAIN_TURNS": "1000",
    "SWEEP_SECONDS": "5",
}
"""Settings of a stage for a crowd: an agent that starts many processes in one turn, and no bound on its wakes."""
