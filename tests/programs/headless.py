"""A process whose first thread has ended: a zombie to look at, while its other thread goes on."""

from __future__ import annotations

import ctypes
import threading
import time
from pathlib import Path

STATUS = Path(f"/proc/self/task/{threading.main_thread().native_id}/status")


def go_on() -> None:
    """Say so once the first thread has ended."""
    while "State:\tZ" not in STATUS.read_text():
        time.sleep(0.005)
    print("ready", flush=True)
    time.sleep(600)


threading.Thread(target=go_on).start()
ctypes.CDLL(None).pthread_exit(0)
