"""Counts what a view and Flink SQL say of searches, clicked or not, over the same topics (`make bench-flink`).

    python -m bench.views.outcomes_beside_flink [--searches 100] [--json FILE]

A search is clicked if a click of it lies within 30 minutes, which is known at once; 40 minutes after it, it is not
clicked. Four kinds of searches, all of 10:00, as many of each: clicked at 10:05; never clicked; clicked at 10:20, by a
phone that sends it at 11:00; and the same, sent at 18:00, which is later than events are waited for: two hours. Both
sides read two topics of events in JSON. The view has its clock from a connector, which says each hour and minute that
passes; Flink has watermarks, by the events themselves, and an interval join, its way to give such an answer.

Three times are looked at what each has published: when the clock has passed 10:40 and nothing has come since 10:05;
when other events of 10:45 have come; and at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import Producer

from bench.measure import tell
from bench.measure.meter import Topic
from bench.peers import flink
from bench.views.beside_flink import ACCOUNT, PARTITIONS, Ours, Source, folded
from cdc.dev.stack import DevServers
from cdc.model.errors import CdcError, OperatorError

_SETTLED_S: Final = 15.0
_PATIENCE_S: Final = 120.0
_DAY_S: Final = 1_767_225_600
KINDS: Final = ("clicked", "never clicked", "told at 11:00", "told at 18:00")
_OUTCOME: Final = """SELECT s.id, CASE WHEN min(c.at) IS NOT NULL THEN 'clicked' ELSE 'not clicked' END AS outcome
FROM stream.searches s
LEFT JOIN stream.clicks c ON c.search_id = s.id AND c.at BETWEEN s.at AND s.at + INTERVAL 30 MINUTES
GROUP BY s.id, s.at HAVING min(c.at) IS NOT NULL OR s.at + INTERVAL 40 MINUTES <= clock()"""
_IN_FLINK: Final = """SELECT s.id, CASE WHEN c.`at` IS NOT NULL THEN 'clicked' ELSE 'not clicked' END AS outcome
FROM searches s LEFT JOIN clicks c ON c.search_id = s.id AND c.`at` BETWEEN s.`at` AND s.`at` + INTERVAL '30' MINUTE"""
_TICKS: Final = "SELECT id, balance FROM {account}"


@dataclass(frozen=True, slots=True)
class Seen:
    """What one side has published at one time, beside what is right."""

    when: str
    who: str
    right: int
    wrong: int
    missing: int


def _instant(clock: str) -> int:
    hours, minutes = map(int, clock.split(":"))
    return _DAY_S + hours * 3600 + minutes * 60


class Events:
    """The two topics of events, and the connector whose clock the view has."""

    def __init__(self, kafka: str, searches: int) -> None:
        for topic in ("searches", "clicks"):
            Topic(kafka, topic, PARTITIONS).create()  # as many as Flink's readers: none of them is without events
        self._producer = Producer({"bootstrap.servers": kafka, "log_level": 0})
        self._source, self._searches = Source(kafka, ACCOUNT), searches
        self._source.publish(self._source.transaction((ACCOUNT, {"id": 1, "balance": 0})), source_ms=_ms("10:00"))

    def of(self, kind: str) -> range:
        """Return the searches of a kind."""
        first = KINDS.index(kind) * self._searches
        return range(first, first + self._searches)

    def write(self, topic: str, ids: range, at: str, *, sent: str) -> None:
        """Write searches, or clicks of them."""
        for number in ids:
            event = {"id": number, "search_id": number, "at": f"2026-01-01T{at}:00"}
            self._producer.produce(topic, json.dumps(event), key=str(number), timestamp=_ms(sent))
        self._producer.flush(30)

    def pass_to(self, clock: str) -> None:
        """Say what time it is at the source."""
        self._source.idle(_ms(clock))

    def right(self, *told: str) -> dict[int, str]:
        """Return what is right once searches of these kinds are known to be clicked, and all others not."""
        return {n: "clicked" if kind in told else "not clicked" for kind in KINDS for n in self.of(kind)}


def _ms(clock: str) -> int:
    return _instant(clock) * 1000


def _published(kafka: str, topic: str) -> dict[int, str]:
    return {dict(row)["id"]: dict(row)["outcome"] for row in folded(kafka, topic)}


def _settled(kafka: str, topic: str, right: Mapping[int, str]) -> dict[int, str]:
    """Return what a side has published, as soon as it is right, or once nothing more comes."""
    seen, since = dict[int, str](), time.time()
    while time.time() - since < _SETTLED_S:
        found = _published(kafka, topic)
        if all(found.get(number) == of for number, of in right.items()):
            return found
        if found != seen:
            seen, since = found, time.time()
        time.sleep(0.5)
    return seen


def measured(folder: Path, kafka: str, *, searches: int) -> Iterator[Seen]:
    """Yield what both sides say, three times."""
    events = Events(kafka, searches)
    stream = {"key": ["id"], "time": "at", "keep": "2h"}
    streams = {
        "searches": {"topic": "searches", "schema": "id BIGINT, at TIMESTAMP", **stream},
        "clicks": {"topic": "clicks", "schema": "id BIGINT, search_id BIGINT, at TIMESTAMP", **stream},
    }
    views = {"outcome": (_OUTCOME, ("id",)), "ticks": (_TICKS, ("id",))}
    ours = Ours(folder / "outcomes", kafka, ACCOUNT.prefix, views, streams=streams)
    Topic(kafka, "flink.outcome", PARTITIONS).create()
    cluster = flink.Cluster(folder / "flink", flink.KAFKA)
    sides = {ours.name: ours.topics[0], f"Flink SQL {flink.VERSION}": "flink.outcome"}

    def look(when: str, right: Mapping[int, str]) -> Iterator[Seen]:
        for who, topic in sides.items():
            tell(f"{who}: {when}")
            found = _settled(kafka, topic, right)
            wrong = sum(found.get(number, of) != of for number, of in right.items())
            yield Seen(when, who, len(right), wrong, len(right.keys() - found.keys()))

    events.write("searches", range(len(KINDS) * searches), "10:00", sent="10:00")
    events.write("clicks", events.of("clicked"), "10:05", sent="10:05")
    events.pass_to("10:06")
    with ours.ready(), cluster:
        ours.start()
        insert = f"INSERT INTO outcome_out {_IN_FLINK} ON CONFLICT DO DEDUPLICATE"
        cluster.submit(_tables(kafka), [insert])
        clicked = dict.fromkeys(events.of("clicked"), "clicked")
        _until(lambda: all(clicked.items() <= _published(kafka, topic).items() for topic in sides.values()), ours)
        events.pass_to("10:41")
        yield from look("10:41, no event since 10:05", events.right("clicked"))
        others = range(len(KINDS) * searches, (len(KINDS) + 1) * searches)
        for topic in ("searches", "clicks"):
            events.write(topic, others, "10:45", sent="10:45")
        events.pass_to("10:46")
        yield from look("10:46, other events have come", events.right("clicked"))
        events.write("clicks", events.of("told at 11:00"), "10:20", sent="11:00")
        events.pass_to("11:01")
        time.sleep(_SETTLED_S)
        events.write("clicks", events.of("told at 18:00"), "10:20", sent="18:00")
        events.pass_to("18:01")
        time.sleep(_SETTLED_S)
        yield from look("18:01, late clicks have come", events.right("clicked", "told at 11:00"))


def _until(there: Callable[[], bool], job: Ours) -> None:
    deadline = time.time() + _PATIENCE_S
    while not there():
        if (failed := job.failure()) is not None or time.time() > deadline:
            raise OperatorError("the first clicks are not published", hint=failed)
        time.sleep(0.5)


def _tables(kafka: str) -> list[str]:
    def events(name: str, columns: str) -> str:
        about = {
            "connector": "kafka", "topic": name, "properties.bootstrap.servers": kafka, "properties.group.id": "flink",
            "scan.startup.mode": "earliest-offset", "format": "json", "json.timestamp-format.standard": "ISO-8601",
        }  # fmt: skip
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in about.items())
        return f"CREATE TABLE {name} ({columns}, `at` TIMESTAMP(3), WATERMARK FOR `at` AS `at`) WITH ({listed})"

    sink = (
        "CREATE TABLE outcome_out (id BIGINT, outcome STRING, PRIMARY KEY (id) NOT ENFORCED) WITH "
        f"('connector' = 'upsert-kafka', 'topic' = 'flink.outcome', 'properties.bootstrap.servers' = '{kafka}', "
        "'key.format' = 'json', 'value.format' = 'json')"
    )
    return [events("searches", "id BIGINT"), events("clicks", "id BIGINT, search_id BIGINT"), sink]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=int, default=100, help="of each kind (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was counted here too")
    given = parser.parse_args()
    about = {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
    try:
        with tempfile.TemporaryDirectory(prefix="cdc-bench-") as name:
            folder = Path(name)
            with DevServers(folder / "servers", servers=("kafka",)) as servers:
                found = list(measured(folder, servers["kafka"].url, searches=given.searches))
    except CdcError as error:
        sys.exit(f"error: {error}\n{error.hint or ''}")
    except KeyboardInterrupt:
        sys.exit(130)
    print(f"{'':<34}{'':<18}{'searches':>9} {'wrong':>7} {'missing':>8}")
    for of in found:
        print(f"{of.when:<34}{of.who:<18}{of.right:>9,} {of.wrong:>7,} {of.missing:>8,}")
    print(f"\n{about['cores']} cores, load {about['load']:.1f} at the start.")
    if given.json:
        given.json.write_text(json.dumps({**about, "seen": [asdict(of) for of in found]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
