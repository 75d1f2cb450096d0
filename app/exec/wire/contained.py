"""What the container of a supervisor was to have mounted over its workspace, as whoever made it has written down."""

from __future__ import annotations

import json
import os
from typing import Any, Final, cast

from shellback.exec.wire import layout
from shellback.exec.wire.sandbox import FIXED, READ_ONLY

WORKSPACE: Final = "/workspace"
TABLE: Final = "/proc/self/mountinfo"


def covered(home: str) -> dict[str, str]:
    """Paths on which something has to be mounted, with their kind; none where this is no container's home."""
    try:
        with open(os.path.join(home, layout.CONTAINER), encoding="utf-8") as file:
            row = cast("dict[str, Any]", json.load(file))
        kinds = {str(mount["target"]): FIXED if mount["writable"] else READ_ONLY for mount in row["mounts"]}
    except (OSError, ValueError, TypeError, KeyError):
        return {}
    return {path: kind for path, kind in kinds.items() if path.startswith(f"{WORKSPACE}/")}
