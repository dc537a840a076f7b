"""Measures the apply job, store by store, against its targets: `make bench-apply`.

    python -m bench.derived.apply [--stores iceberg,tantivy] [--rows 1000000] [--events 2000000] [--json FILE]

*Sustained apply* and *documents*: a table of nine columns is filled, then a tenth as many updates are folded in to warm
up. Then updates of random keys, written to Kafka beforehand, are folded in one run, in batches that the job sizes
itself. The time runs from the start of the stream, just before the first batch, to the end of the last batch. Changes
are events; documents are the rows that came to the store, the newest event of each key in a batch.

*Freshness*: a connector follows a PostgreSQL database in which 1,000 rows a second are changed, ten in a transaction,
and the job folds them in. A transaction is visible when the store is complete up to its end; the store is asked every
20 ms, and the time counts from the return of the commit. The first minute does not count: a job runs for weeks, and its
JVM compiles for about a minute.

*Verify*: see `bench/derived/verify.py`. *Rebuild*: see `bench/derived/rebuild.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.derived.backlog import Backlog
from bench.derived.backlog import table as made_table
from bench.derived.following import database
from bench.derived.freshness import delays
from bench.derived.targets import (
    ALARMS,
    CHANGES,
    DOCUMENTS,
    P50,
    P99,
    PLANTED,
    REBUILD,
    VERIFY,
    Figure,
    percentile,
    table,
)
from bench.derived.verify import prove
from bench.measure import PROJECT, tell
from cdc.config.apply_config import ApplySource, ApplyTable, StoreConfig
from cdc.config.config import ApplyConfig
from cdc.dev.stack import DevServers
from cdc.model.errors import CdcError
from spark_apply.job.job import run_apply
from spark_apply.model.store import STORES
from spark_apply.spark.session import open_session

_BROKER: Final = "-XX:+UseSerialGC -Xshare:auto"
"""Java options of the broker, compiled as one that runs for weeks; `cdc dev` has the quick compiler only."""
PARTS: Final = ("apply", "freshness", "rebuild", "verify")


@dataclass(frozen=True, slots=True)
class Setup:
    """How a kind of store is opened for a benchmark."""

    config: Callable[[Path, Mapping[str, str]], StoreConfig]
    """Given a folder, and the urls of servers by name."""
    server: str | None = None
    documents: bool = False
    """Whether it is measured in documents instead of changes."""


def _in_folder(kind: str) -> Callable[[Path, Mapping[str, str]], StoreConfig]:
    return lambda folder, _urls: StoreConfig(type=kind, path=str(folder / kind))


def _at_server(kind: str, server: str) -> Callable[[Path, Mapping[str, str]], StoreConfig]:
    return lambda _folder, urls: StoreConfig(type=kind, url=urls[server])


SETUPS: Final = {
    "postgres": Setup(_at_server("postgres", "warehouse"), server="postgres18"),
    "iceberg": Setup(_in_folder("iceberg")),
    "delta": Setup(_in_folder("delta")),
    "opensearch": Setup(_at_server("opensearch", "opensearch"), server="opensearch", documents=True),
    "tantivy": Setup(_in_folder("tantivy"), documents=True),
}
"""A store that is not in `STORES` (yet) is not measured."""


def chosen(asked: list[str]) -> list[str]:
    """Select the stores that exist and that we can open; print a line for each other one."""
    for kind in asked:
        if kind not in STORES:
            tell(f"{kind}: there is no such store, skipped")
        elif kind not in SETUPS:
            tell(f"{kind}: bench/derived/apply.py does not say how to open it, skipped")
    return [kind for kind in asked if kind in STORES and kind in SETUPS]


class Bench:
    """The measurements, given running servers and a folder."""

    def __init__(self, folder: Path, urls: Mapping[str, str], given: argparse.Namespace) -> None:
        self._folder = folder
        self._urls = urls
        self._kafka = urls["kafka"]
        self._given = given

    def rates(self, kind: str) -> Iterator[Figure]:
        setup, given = SETUPS[kind], self._given
        rows, events = (given.documents,) * 2 if setup.documents else (given.rows, given.events)
        of = made_table(f"bench-{kind}")
        config = self._config(kind, of.prefix, f"rate-{kind}")
        backlog = Backlog(self._kafka, of)
        tell(f"{kind}: filling a table of {rows:,} rows")
        backlog.rows(rows)
        _, _, seconds = _folded(config)
        tell(f"{kind}: filled at {rows / seconds:,.0f} rows/s, with all that is new; {events:,} updates")
        backlog.updates(max(1, events // 10), rows, seed=1)
        _folded(config)
        backlog.updates(events, rows, seed=2)
        count, keys, seconds = _folded(config)
        done, what = (keys, DOCUMENTS) if setup.documents else (count, CHANGES)
        yield Figure(what, kind, done / seconds, f"{count:,} updates of {rows:,} rows in {seconds:.1f} s")

    def freshness(self, kind: str) -> Iterator[Figure]:
        given = self._given
        config = self._config(kind, f"fresh-{kind}", f"fresh-{kind}")
        tell(f"{kind}: {given.rate:,} changes/s for {given.seconds} s")
        found = delays(
            self._folder / f"fresh-{kind}",
            self._urls["postgres18"],
            config,
            rows=min(given.rows, 100_000),
            rate=given.rate,
            warm=given.warm,
            seconds=given.seconds,
        )
        of = f"{len(found):,} transactions at {given.rate:,} changes/s, behind {given.warm} s of them"
        yield Figure(P50, kind, percentile(found, 0.5), of)
        yield Figure(P99, kind, percentile(found, 0.99), of)

    def rebuild(self) -> Iterator[Figure]:
        events, keys = min(1_000_000, self._given.events), min(500_000, self._given.rows)
        found = self._ran("bench.derived.rebuild", "--events", str(events), "--keys", str(keys), "--json")
        yield Figure(REBUILD, "iceberg", found["ratio"], f"{events:,} events of {keys:,} keys")

    def verify(self) -> Iterator[Figure]:
        given, kind = self._given, "postgres"
        config = self._config(kind, "proof", "proof")
        tell(f"{kind}: verify, {given.rows:,} rows")
        found = prove(
            self._folder / "proof",
            self._urls["postgres18"],
            config,
            rows=given.rows,
            rate=given.rate,
            runs=given.runs,
        )
        of = f"{found.rows:,} rows"
        yield Figure(VERIFY, kind, found.rows / found.seconds, of)
        yield Figure(
            PLANTED, kind, found.found, f"{of}; {'repaired' if found.repaired else 'NOT repaired'} by --repair"
        )
        of = f"{found.runs} runs at {given.rate:,} changes/s, {found.undecided} rows undecided"
        yield Figure(ALARMS, kind, found.alarms, of)

    def _ran(self, module: str, *words: str) -> dict[str, Any]:
        """Run another benchmark and read the figures from the file that its last argument names."""
        tell(f"{module}")
        file = self._folder / f"{module}.json"
        command = [sys.executable, "-m", module, *words, str(file)]
        subprocess.run(command, cwd=PROJECT, stdout=sys.stderr, check=True)
        found: dict[str, Any] = json.loads(file.read_text())
        return found

    def _config(self, kind: str, prefix: str, name: str) -> ApplyConfig:
        folder, urls = self._folder / name, dict(self._urls)
        if SETUPS[kind].server == "postgres18":  # where the source is as well
            urls["warehouse"] = database(urls["postgres18"], f"{name}-copies")
        return ApplyConfig(
            name=name,
            source=ApplySource(bootstrap_servers=self._kafka, topic_prefix=prefix),
            stores={kind: SETUPS[kind].config(folder, urls)},
            tables={"public.orders": ApplyTable(stores=(kind,))},
            checkpoint=str(folder / "checkpoints"),
        )


def _folded(config: ApplyConfig) -> tuple[int, int, float]:
    """Fold everything in; return events, rows given to the store, and the seconds from stream start to last batch."""
    at: list[float] = []

    def told(line: str) -> None:
        if line.startswith(("following", "batch")):
            at.append(time.monotonic())

    (counts,) = run_apply(config, once=True, progress=told).tables.values()
    (count,) = counts.values()
    return count.events, count.keys, at[-1] - at[0]


@contextmanager
def _urls(folder: Path, kinds: list[str], parts: list[str]) -> Iterator[dict[str, str]]:
    """Start the servers that these stores and parts need."""
    needed = {"kafka"} | {server for kind in kinds if (server := SETUPS[kind].server)}
    if {"freshness", "verify"} & set(parts):
        needed.add("postgres18")
    os.environ.setdefault("KAFKA_JVM_PERFORMANCE_OPTS", _BROKER)
    with DevServers(folder, servers=tuple(sorted(needed))) as servers:
        yield {name: servers[name].url for name in needed}


def measured(given: argparse.Namespace, kinds: list[str], parts: list[str]) -> list[Figure]:
    figures: list[Figure] = []

    def add(found: Iterator[Figure]) -> None:
        for figure in found:
            tell(f"{figure.what}, {figure.store}: {figure.value:,.2f}, {figure.of}")
            figures.append(figure)

    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as name:
        folder = Path(name)
        tell("starting servers")
        with _urls(folder / "servers", kinds, parts) as urls:
            bench = Bench(folder, urls, given)
            spark = open_session("bench")
            for part, measure in (("apply", bench.rates), ("freshness", bench.freshness)):
                for kind in kinds if part in parts else ():
                    add(measure(kind))
            if "verify" in parts:
                add(bench.verify())
            spark.stop()
            if "rebuild" in parts:
                add(bench.rebuild())
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", default=",".join(SETUPS), help="comma-separated (default: %(default)s)")
    parser.add_argument("--only", default=",".join(PARTS), help="comma-separated (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the table (default: %(default)s)")
    parser.add_argument("--events", type=int, default=2_000_000, help="updates (default: %(default)s)")
    parser.add_argument(
        "--documents", type=int, default=300_000, help="of an index, and updates (default: %(default)s)"
    )
    parser.add_argument(
        "--rate", type=int, default=1_000, help="changes a second, for freshness (default: %(default)s)"
    )
    parser.add_argument("--seconds", type=int, default=60, help="of freshness (default: %(default)s)")
    parser.add_argument(
        "--warm", type=int, default=60, help="seconds of freshness that are not counted (default: %(default)s)"
    )
    parser.add_argument("--runs", type=int, default=10, help="of verify under load (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    given = parser.parse_args()
    parts = given.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    about = {"cores": os.cpu_count(), "load": os.getloadavg()[0], "rows": given.rows, "events": given.events}
    try:
        figures = measured(given, chosen(given.stores.split(",")), parts)
    except CdcError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:  # all servers have been stopped by now
        sys.exit(130)
    print(table(figures))
    print(f"\n{about['cores']} cores, load {about['load']:.1f} at the start; the sizes asked for are in issue 6.")
    if given.json:
        found = {**about, "figures": [figure.as_json() for figure in figures]}
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
