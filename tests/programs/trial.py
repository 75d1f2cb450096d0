"""Runs commands one after the other in a directory, and tells after each what has changed. Standard library only.

    python3 trial.py LISTED DIRECTORY

`LISTED` holds commands as JSON. For each that changed something a line of JSON is printed, and `{"run": N}` at the end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

QUIET = ("/.git/index",)
"""What git brings up to date by itself when it is asked; told apart."""
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp/home", "LANG": "C.UTF-8", "TERM": "dumb"}


def state(directory: str) -> dict[str, tuple[object, ...]]:
    """Everything in a directory but when it was read."""
    found: dict[str, tuple[object, ...]] = {}
    waiting = [directory]
    while waiting:
        for entry in os.scandir(waiting.pop()):
            facts = entry.stat(follow_symlinks=False)
            found[entry.path] = (facts.st_mode, facts.st_uid, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
                # What a program makes and removes again is no change; ctime and mtime of its directory tell of it.
                found[entry.path] = found[entry.path][:2]
    return found


def main() -> None:
    """Run them."""
    with open(sys.argv[1], encoding="utf-8") as listed:
        commands: list[str] = json.load(listed)
    directory = sys.argv[2]
    os.makedirs("/tmp/home", exist_ok=True)
    places = [directory, "/tmp"]
    before = [state(place) for place in places]
    for command in commands:
        process = subprocess.Popen(
            ["/bin/bash", "-c", command],
            cwd=directory, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        late = False
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            late = True
            os.killpg(process.pid, 9)
            process.wait()
        after = [state(place) for place in places]
        changed = sorted(
            path
            for was, now in zip(before, after, strict=True)
            for path in was.keys() | now.keys()
            if was.get(path) != now.get(path)
        )
        if changed or late:
            index = bool(changed) and all(path.endswith(QUIET) for path in changed)
            print(json.dumps({"command": command, "changed": changed, "index": index, "late": late}), flush=True)
        before = after
    print(json.dumps({"run": len(commands)}), flush=True)


if __name__ == "__main__":
    main()
