"""Measures a view job as a whole, `cdc view run` over Kafka: how fresh, how punctual, how soon it is back.

    python -m bench.views.jobs [--only fresh|punctual|back] [--rate 1000] [--seconds 30] [--rows 1000000]

*Fresh*: tweets change at a steady rate; from the moment before their transaction is committed to Kafka until a
read_committed reader has the rows of a join that they are in. *Punctual*: rows have a deadline of five seconds, nothing
else is written, and the source's clock comes each second, as of a connector with `sink.idle_position_s: 1`; from the
deadline until a reader has its row. *Back*: the job is stopped, one row changes, and it is started, with its state and
without; from the start of the process until a reader has the change. The state has all rows of two tables, of which
one is a tenth of the other, and an aggregate over each.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from bench.measure import tell
from bench.views.beside_flink import COUNTS, FOLLOWS, PARTITIONS, TIMELINE, TWEETS, Ours, Source
from cdc.dev.stack import DevServers
from cdc.model.errors import CdcError, OperatorError
from tests.spark.records import SourceTable

_PATIENCE_S: Final = 600.0
_TICK_S: Final = 0.1
_WARM_S: Final = 10.0
_DEADLINE_S: Final = 5.0
_DEADLINES: Final = 10
_SENDERS: Final = 1_000
_A_CHUNK: Final = 20_000
SEARCHES: Final = SourceTable("late", "searches", {"id": {"kind": "int64"}, "at": {"kind": "timestamp_micros"}})
_LATE: Final = "SELECT id, at FROM public.searches WHERE at + INTERVAL 5 SECONDS <= clock()"
_BY_FOLLOWER: Final = "SELECT follower, count(*) AS n FROM {follows} GROUP BY follower"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table; times in seconds."""

    what: str
    count: int
    p50: float
    p99: float
    most: float


@dataclass(slots=True)
class Seen:
    """Reads a view's topic on a thread, from where it ends now: when was the row of each key there, and what was it."""

    kafka: str
    topic: str
    rows: list[tuple[float, Mapping[str, Any]]] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def reading(self) -> Iterator[Seen]:
        about = {"bootstrap.servers": self.kafka, "group.id": "bench", "isolation.level": "read_committed"}
        with closing(Consumer({**about, "enable.auto.commit": "false", "fetch.wait.max.ms": 10, "log_level": 0})) as of:
            places = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
            of.assign([TopicPartition(p.topic, p.partition, of.get_watermark_offsets(p)[1]) for p in places])
            thread = threading.Thread(target=self._read, args=(of,))
            thread.start()
            try:
                yield self
            finally:
                self._ended.set()
                thread.join()

    def _read(self, consumer: Consumer) -> None:
        while not self._ended.is_set():
            for message in consumer.consume(1_000, timeout=0.02):
                value = json.loads(message.value() or b"null")
                if value is not None and value["after"] is not None:
                    self.rows.append((time.time(), value["after"]))

    def until(self, count: int, job: Ours) -> None:
        """Wait for so many rows. Raises OperatorError."""
        deadline = time.time() + _PATIENCE_S
        while len(self.rows) < count:
            if (failed := job.failure()) is not None:
                raise OperatorError("the view job has ended", hint=failed)
            if time.time() > deadline:
                raise OperatorError(f"{self.topic}: {len(self.rows)} of {count} rows after {_PATIENCE_S:.0f} s")
            time.sleep(0.01)


def _figure(what: str, times: list[float]) -> Figure:
    every = sorted(times)
    return Figure(what, len(every), statistics.median(every), every[int(len(every) * 0.99)], every[-1])


def _there(job: Ours, topic: str) -> None:
    """Wait until the job has published something to a topic."""
    seen, deadline = False, time.time() + _PATIENCE_S
    with closing(Consumer({"bootstrap.servers": job.kafka, "group.id": "bench", "log_level": 0})) as of:
        while not seen:
            if (failed := job.failure()) is not None or time.time() > deadline:
                raise OperatorError(f"{topic}: nothing comes", hint=failed)
            if topic in of.list_topics(timeout=10).topics:
                places = (TopicPartition(topic, number) for number in range(PARTITIONS))
                with suppress(KafkaException):  # it has no leader yet
                    seen = any(of.get_watermark_offsets(place)[1] for place in places)
            time.sleep(0.1)


def fresh(folder: Path, kafka: str, *, rate: int, seconds: int) -> Figure:
    """Measure from a change to its rows of a join, at a steady rate."""
    source = Source(kafka, TWEETS, FOLLOWS)
    rows: list[tuple[SourceTable, Mapping[str, Any]]] = [
        (FOLLOWS, {"id": n, "follower": n, "followee": n % _SENDERS}) for n in range(2 * _SENDERS)
    ]
    rows += [(TWEETS, {"id": n, "sender": n % _SENDERS, "text": "0"}) for n in range(20 * _SENDERS)]
    source.publish([record for of in rows for record in source.transaction(of)])
    job = Ours(folder / "fresh", kafka, "feed", {"timeline": (TIMELINE, ("follow", "tweet"))})
    with job.ready():
        job.start()
        _there(job, job.topics[0])
        with Seen(kafka, job.topics[0]).reading() as seen:
            begun, written = time.time(), 0
            while (now := time.time()) < begun + _WARM_S + seconds:
                due = round((now - begun) * rate) - written
                changed = [
                    (TWEETS, {"id": n % (20 * _SENDERS), "sender": n % _SENDERS, "text": str(now)})
                    for n in range(written, written + due)
                ]
                source.publish([record for of in changed for record in source.transaction(of)])
                written += due
                time.sleep(max(0.0, now + _TICK_S - time.time()))
            seen.until(2 * written, job)
    measured = [at - float(row["text"]) for at, row in seen.rows if float(row["text"]) > begun + _WARM_S]
    return _figure(f"fresh at {written / (time.time() - begun):,.0f} changes/s", measured)


def punctual(folder: Path, kafka: str) -> Figure:
    """Measure from a deadline to its row, while nothing is written."""
    source = Source(kafka, SEARCHES)
    source.publish(source.transaction((SEARCHES, {"id": -1, "at": 0})), source_ms=round(time.time() * 1000))
    job = Ours(folder / "late", kafka, "late", {"late": (_LATE, ("id",))})
    with job.ready():
        job.start()
        _there(job, job.topics[0])
        with Seen(kafka, job.topics[0]).reading() as seen:
            deadlines = {}
            for number in range(_DEADLINES):
                now = time.time()
                deadlines[number] = now + _DEADLINE_S
                row = {"id": number, "at": round(now * 1e6)}
                source.publish(source.transaction((SEARCHES, row)), source_ms=round(now * 1000))
                time.sleep((number + 0.5) / _DEADLINES)  # the clock comes anywhere between two deadlines
                while len(seen.rows) <= number and time.time() < deadlines[number] + 60:
                    time.sleep(1)
                    source.idle(round(time.time() * 1000))
            seen.until(_DEADLINES, job)
    return _figure("a deadline passes, no input", [at - deadlines[row["id"]] for at, row in seen.rows])


def back(folder: Path, kafka: str, *, rows: int) -> Iterator[Figure]:
    """Measure from the start of the process to a change that was written while it was down."""
    tables = [SourceTable("big", of.name, of.columns) for of in (TWEETS, FOLLOWS)]
    tweets, follows = tables
    source = Source(kafka, *tables)
    tell(f"writing {rows:,} rows, and a tenth as many")
    for first in range(0, rows, _A_CHUNK):
        numbers = range(first, min(first + _A_CHUNK, rows))
        made = [(tweets, {"id": n, "sender": n % (rows // 20), "text": f"text {n}"}) for n in numbers]
        made += [(follows, {"id": n, "follower": n % 997, "followee": n % 991}) for n in numbers if n % 10 == 0]
        source.publish(source.transaction(*made))
    views = {"counts": (COUNTS, ("sender",)), "by_follower": (_BY_FOLLOWER, ("follower",))}
    job = Ours(folder / "back", kafka, "big", views)
    with job.ready():
        job.start()
        for topic in job.topics:
            _there(job, topic)
    for number, how in enumerate(("with its state", "without")):
        if how == "without":
            shutil.rmtree(folder / "back" / "state")
        source.publish(source.transaction((tweets, {"id": rows + number, "sender": 1, "text": how})))
        with Seen(kafka, job.topics[0]).reading() as seen, job.ready():
            begun = job.start()
            seen.until(1, job)
        yield _figure(f"back {how}, {rows * 11 // 10:,} rows", [seen.rows[0][0] - begun])


def measured(folder: Path, kafka: str, given: argparse.Namespace) -> Iterator[Figure]:
    """Yield the figures that are asked for."""
    if given.only in (None, "fresh"):
        yield fresh(folder, kafka, rate=given.rate, seconds=given.seconds)
    if given.only in (None, "punctual"):
        yield punctual(folder, kafka)
    if given.only in (None, "back"):
        yield from back(folder, kafka, rows=given.rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["fresh", "punctual", "back"], help="measure this alone")
    parser.add_argument("--rate", type=int, default=1_000, help="changes a second (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=30, help="behind the first ten (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the state (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    given = parser.parse_args()
    about, figures = {"cores": os.cpu_count(), "load": os.getloadavg()[0]}, list[Figure]()
    try:
        with tempfile.TemporaryDirectory(prefix="cdc-bench-") as name:
            folder = Path(name)
            with DevServers(folder / "servers", servers=("kafka",)) as servers:
                kafka = servers["kafka"].url
                print(f"{'seconds':<36}{'times':>8} {'p50':>7} {'p99':>7} {'most':>7}")
                for of in measured(folder, kafka, given):
                    print(f"{of.what:<36}{of.count:>8,} {of.p50:>7.2f} {of.p99:>7.2f} {of.most:>7.2f}", flush=True)
                    figures.append(of)
    except CdcError as error:
        sys.exit(f"error: {error}\n{error.hint or ''}")
    except KeyboardInterrupt:
        sys.exit(130)
    print(f"\n{about['cores']} cores, load {about['load']:.1f} at the start.")
    if given.json:
        given.json.write_text(json.dumps({**about, "figures": [asdict(of) for of in figures]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
