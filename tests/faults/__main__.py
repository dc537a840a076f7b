"""`python -m tests.faults --seconds N --seed S`: the soak, its table on stdout, exit 1 on any violation."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import tempfile
from pathlib import Path

from cdc.config.kafka_config import PRODUCERS
from tests.faults.soak import ORIGINS, Plan, soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--source", choices=ORIGINS, default="postgres18")
    parser.add_argument("--producer", choices=PRODUCERS, default=PRODUCERS[0])
    parser.add_argument("--json", type=Path, help="where the report goes")
    parser.add_argument("--folder", type=Path, help="where the servers live and the connector's logs stay")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = given.folder or Path(tempfile.mkdtemp(prefix="cdc-soak-"))
    print(f"seed {given.seed}, logs in {folder}", file=sys.stderr)
    plan = Plan(seconds=given.seconds, seed=given.seed, folder=folder, source=given.source, producer=given.producer)
    report = soak(plan)
    if given.json is not None:
        report.keep(given.json)
    print(report.table())
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
