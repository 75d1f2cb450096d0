"""A worker that notes each request to its model in `asked`; with seconds as the first argument, one of short leases."""

import os
import sys
from typing import Any

import shellback.agent.offline
from shellback.cli.main import main
from shellback.work.hosts import roster, takeover
from shellback.work.worker import worker

decide = shellback.agent.offline._decide  # pyright: ignore[reportPrivateUsage]


def counted(*args: Any) -> Any:
    with open(f"{os.environ['SHELLBACK_HOME']}/asked", "a") as asked:
        asked.write(f"{os.environ['WORKER_NAME']}\n")
    return decide(*args)


shellback.agent.offline._decide = counted  # pyright: ignore[reportPrivateUsage]
if len(sys.argv) > 1:
    lease = float(sys.argv[1])
    for module in (roster, takeover):
        setattr(module, "LEASE_S", lease)  # noqa: B010 - a constant, to the type checker
    setattr(takeover, "GRACE_S", lease / 3)  # noqa: B010
    setattr(worker, "HEARTBEAT_S", lease / 3)  # noqa: B010
main(["worker"])
