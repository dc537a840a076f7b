"""Runs `cdc run FILE --until-caught-up` for PostgreSQL, and prints what it used since it began to follow the log.

    python -m bench.capture.run FILE

Prints {"cpu_s": …, "seconds": …}: CPU of the process with its threads, user and system; zeros if there was nothing to
follow.
"""

from __future__ import annotations

import json
import sys
import time

from cdc.cli.main import main
from connectors.postgres import source
from connectors.postgres.slot.replication_stream import ReplicationConnection


def _now() -> tuple[float, float]:
    return time.process_time(), time.monotonic()


class _Followed(ReplicationConnection):
    """Remembers when it was started."""

    begun: tuple[float, float] | None = None

    def start(self, slot: str, publication: str, lsn: int, *, messages: bool, flushed: int | None = None) -> None:
        _Followed.begun = _now()
        super().start(slot, publication, lsn, messages=messages, flushed=flushed)


def run(file: str) -> None:
    vars(source)["ReplicationConnection"] = _Followed
    try:
        main(["run", file, "--until-caught-up"])
    finally:
        ended = _now()
        cpu_s, begun_s = _Followed.begun or ended
        print(json.dumps({"cpu_s": ended[0] - cpu_s, "seconds": ended[1] - begun_s}), flush=True)


if __name__ == "__main__":
    run(sys.argv[1])
