"""A worker whose application version is the first argument: what another release looks like to the queues."""

import sys

import app.work.worker
from app.cli.main import main

app.work.worker.application_version = lambda: sys.argv[1]
main(["worker"])
