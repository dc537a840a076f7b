"""Measures a view job beside Flink SQL, over the same topics, both exactly once: `make bench-flink`.

    python -m bench.views.beside_flink [--tweets 40000] [--changes 20000] [--transfers 2000] [--json FILE]

*Everything, first*: tweets and who follows whom are in their topics. A timeline (their join) and a count by sender are
computed, from the start of `cdc view run`, or of a job in a Flink cluster that is up already, to the last record that a
read_committed reader can see. *Catching up*: both go on running, and tweets change their sender, written as fast as
Kafka takes them. Each side has the machine to itself; its broker and the writer do not count. What both have written is
folded by key and compared with the right answer.

*The bank*: money moves between ten accounts, two updates in one source transaction, a hundred of these in a Kafka
transaction. The view is the sum of all balances. A reader reads what is published; each sum that the bank has never had
is a violation.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.measure import PROJECT, tell
from bench.measure.meter import Topic, Usage
from bench.peers import flink
from cdc.dev.servers.process import Launch, Server
from cdc.dev.stack import DevServers
from cdc.model.errors import CdcError, OperatorError
from cdc.model.state import Phase
from tests.spark.records import Publisher, Record, SourceTable, dumps, position

PARTITIONS: Final = 2
PER_SENDER: Final = 20
QUIET_S: Final = 4.0
PATIENCE_S: Final = 900.0
ACCOUNTS: Final = 10
TOGETHER: Final = 100
_BROKER: Final = "-XX:+UseSerialGC -Xshare:auto"
_INT: Final = {"kind": "int64"}
TWEETS: Final = SourceTable("feed", "tweets", {"id": _INT, "sender": _INT, "text": {"kind": "string"}})
FOLLOWS: Final = SourceTable("feed", "follows", {"id": _INT, "follower": _INT, "followee": _INT})
ACCOUNT: Final = SourceTable("bank", "account", {"id": _INT, "balance": _INT})

TIMELINE: Final = """SELECT f.id AS follow, f.follower, t.id AS tweet, t.sender, t.text
FROM {tweets} t JOIN {follows} f ON f.followee = t.sender"""
COUNTS: Final = "SELECT sender, count(*) AS n, max(id) AS newest FROM {tweets} GROUP BY sender"
BANK: Final = "SELECT 'all' AS k, sum(balance) AS total FROM {account}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table."""

    what: str
    who: str
    changes: int
    seconds: float
    cpu_seconds: float
    peak_mb: float


@dataclass(frozen=True, slots=True)
class Bank:
    """What a reader of the bank's sum has seen."""

    who: str
    transfers: int
    read: int
    wrong: int


class Source:
    """The topics of one connector; positions go up from change to change, and updates have all of `before`."""

    def __init__(self, kafka: str, *tables: SourceTable) -> None:
        self._publisher = Publisher(kafka, tables[0].prefix)
        self._publisher.create(tables, partitions=PARTITIONS)
        self._tables = tables
        self._rows: dict[tuple[str, int], Mapping[str, Any]] = {}
        self._commit = 0

    def transaction(self, *changes: tuple[SourceTable, Mapping[str, Any]]) -> list[Record]:
        """Return the records of one source transaction that inserts or updates these rows."""
        self._commit += 1
        records = list[Record]()
        for number, (of, row) in enumerate(changes, 1):
            before = self._rows.get((of.name, row["id"]))
            self._rows[of.name, row["id"]] = row
            ((topic, key, value),) = of.event("c" if before is None else "u", row, position(self._commit, number))
            event = json.loads(value or b"")
            event["before"] = before
            records.append((topic, key, dumps(event)))
        return records

    def publish(self, records: Sequence[Record] = (), *, source_ms: int = 0) -> None:
        """Write records, and that the connector has come so far, by the clock of its source."""
        self._publisher.stand(Phase.STREAM, self._commit + 1, self._tables, records, source_ms=source_ms)

    def idle(self, source_ms: int) -> None:
        """Write that the connector has come further, with nothing to tell but its source's clock."""
        self._commit += 1
        self.publish(source_ms=source_ms)


def read(kafka: str, topic: str) -> Iterator[tuple[Any, Any]]:
    """Yield key and row of each committed record, in the order of each partition; None: the row is gone."""
    ends = dict(enumerate(Topic(kafka, topic, PARTITIONS).ends()))
    about = {"bootstrap.servers": kafka, "group.id": "bench", "isolation.level": "read_committed"}
    with closing(Consumer({**about, "enable.auto.commit": "false", "log_level": 0})) as consumer:
        assigned = [TopicPartition(topic, p, 0) for p, end in ends.items() if end]
        consumer.assign(assigned)
        while assigned:
            for message in consumer.consume(10_000, timeout=0.2):
                if message.error() is not None:
                    raise KafkaException(message.error())
                value = json.loads(message.value() or b"null")
                row = value["after"] if value is not None and "after" in value else value
                yield json.loads(message.key() or b"null"), row
            if all(at.offset >= ends[at.partition] for at in consumer.position(assigned)):
                return


def folded(kafka: str, topic: str) -> set[tuple[Any, ...]]:
    """Return the rows that a topic holds."""
    rows: dict[tuple[Any, ...], Any] = {}
    for key, row in read(kafka, topic):
        rows[tuple(sorted(key.items()))] = row
    return {tuple(sorted(row.items())) for row in rows.values() if row is not None}


class Feed:
    """Tweets and follows, and what must come of them."""

    def __init__(self, kafka: str, tweets: int) -> None:
        self._source = Source(kafka, TWEETS, FOLLOWS)
        self._senders = tweets // PER_SENDER
        self._follows: list[dict[str, Any]] = [
            {"id": n, "follower": n % 9973, "followee": n % self._senders} for n in range(tweets // 10)
        ]
        self._tweets: dict[int, dict[str, Any]] = {
            n: {"id": n, "sender": n % self._senders, "text": f"text {n}"} for n in range(tweets)
        }
        rows = [(FOLLOWS, row) for row in self._follows] + [(TWEETS, row) for row in self._tweets.values()]
        self.rows = len(rows)
        self._source.publish([record for of in rows for record in self._source.transaction(of)])

    def moved(self, changes: int, seed: int) -> list[Record]:
        """Return records by which tweets get another sender."""
        rng, records = random.Random(seed), list[Record]()
        for _ in range(changes):
            row = self._tweets[rng.randrange(len(self._tweets))]
            row = {**row, "sender": rng.randrange(self._senders), "text": f"new {row['id']}"}
            self._tweets[row["id"]] = row
            records += self._source.transaction((TWEETS, row))
        return records

    def publish(self, records: Sequence[Record]) -> float:
        """Write them, and return when this began."""
        begun = time.time()
        self._source.publish(records)
        return begun

    def timeline(self) -> set[tuple[Any, ...]]:
        """Compute what the view is now."""
        of = dict[int, list[dict[str, Any]]]()
        for follow in self._follows:
            of.setdefault(follow["followee"], []).append(follow)
        return {
            tuple(sorted({"follow": f["id"], "follower": f["follower"], "tweet": t["id"], **_without_id(t)}.items()))
            for t in self._tweets.values()
            for f in of.get(t["sender"], ())
        }

    def counts(self) -> set[tuple[Any, ...]]:
        """Compute what the other view is now."""
        found: dict[int, tuple[int, int]] = {}
        for tweet in self._tweets.values():
            n, newest = found.get(tweet["sender"], (0, -1))
            found[tweet["sender"]] = n + 1, max(newest, tweet["id"])
        return {(("n", n), ("newest", newest), ("sender", sender)) for sender, (n, newest) in found.items()}


def _without_id(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "id"}


class Ours:
    """`cdc view run`, a process with its JVM."""

    name = "cdc view run"

    def __init__(
        self, folder: Path, kafka: str, prefix: str, views: Mapping[str, tuple[str, Sequence[str]]], **more: object
    ) -> None:
        self.topics = [f"{prefix}.view.{view}" for view in views]
        self.kafka = kafka
        sql = {
            name: {"sql": text.format(tweets="public.tweets", follows="public.follows", account="public.account")}
            for name, (text, _) in views.items()
        }
        file = folder / "views.yaml"
        folder.mkdir(parents=True)
        file.write_text(
            json.dumps(
                {
                    "name": f"{prefix}-views",
                    "source": {"bootstrap_servers": kafka, "topic_prefix": prefix},
                    "state": str(folder / "state"),
                    "sink": {"partitions": PARTITIONS},
                    "views": {name: {**sql[name], "key": list(key)} for name, (_, key) in views.items()},
                    **more,
                }
            )
        )
        argv = (sys.executable, "-m", "cdc", "view", "run", str(file))
        env = (("PYTHONPATH", str(PROJECT)),)
        self._server = Server(
            "views", folder / "job", lambda _: Launch(argv, ready=lambda _pid: True, url="-", env=env)
        )

    @contextmanager
    def ready(self) -> Iterator[None]:
        """What is up before anything is measured: nothing."""
        try:
            yield
        finally:
            self._server.stop(timeout_s=60)

    def start(self) -> float:
        """Start it, and return when (`time.time`)."""
        begun = time.time()
        self._server.start()
        return begun

    def usage(self) -> list[Usage]:
        return [Usage(self._server.pid)] if self._server.pid else []

    def failure(self) -> str | None:
        return None if self._server.running else self._server.log.read_text()[-2000:]


_KEYS: Final = {"timeline": "ON CONFLICT DO DEDUPLICATE"}
"""What Flink wants to be told where the rows of a join do not come in the order of the view's key."""
_KINDS: Final = {"int64": "BIGINT", "string": "STRING"}


class Theirs:
    """A job in a Flink cluster."""

    name = f"Flink SQL {flink.VERSION}"

    def __init__(
        self,
        folder: Path,
        kafka: str,
        tables: Sequence[SourceTable],
        views: Mapping[str, tuple[str, Sequence[str], Mapping[str, str]]],
    ) -> None:
        self.topics, self.kafka = [f"flink.{view}" for view in views], kafka
        self._cluster = flink.Cluster(folder, flink.KAFKA)
        about = f"'connector' = '{{}}', 'topic' = '{{}}', 'properties.bootstrap.servers' = '{kafka}'"
        self._tables, self._inserts = [], []
        for of in tables:
            columns = ", ".join(f"`{name}` {_KINDS[kind['kind']]}" for name, kind in of.columns.items())
            with_ = ", ".join(
                (
                    about.format("kafka", of.topic),
                    "'properties.isolation.level' = 'read_committed'",
                    "'properties.group.id' = 'flink'",
                    "'scan.startup.mode' = 'earliest-offset'",
                    "'format' = 'debezium-json'",
                )
            )
            self._tables.append(f"CREATE TABLE {of.name} ({columns}, PRIMARY KEY (id) NOT ENFORCED) WITH ({with_})")
        for view, (text, key, columns_of) in views.items():
            Topic(kafka, f"flink.{view}", PARTITIONS).create()
            columns = ", ".join(f"`{name}` {kind}" for name, kind in columns_of.items())
            with_ = ", ".join(
                (
                    about.format("upsert-kafka", f"flink.{view}"),
                    "'key.format' = 'json', 'value.format' = 'json'",
                    "'sink.delivery-guarantee' = 'exactly-once'",
                    f"'sink.transactional-id-prefix' = 'flink-{view}'",
                    "'properties.transaction.timeout.ms' = '600000'",
                )
            )
            primary = ", ".join(f"`{name}`" for name in key)
            self._tables.append(
                f"CREATE TABLE {view}_out ({columns}, PRIMARY KEY ({primary}) NOT ENFORCED) WITH ({with_})"
            )
            names = {of.name: of.name for of in tables}
            self._inserts.append(f"INSERT INTO {view}_out {text.format_map(names)} {_KEYS.get(view, '')}")

    @contextmanager
    def ready(self) -> Iterator[None]:
        with self._cluster:
            yield

    def start(self) -> float:
        """Start the job; what its SQL client takes before does not count."""
        return self._cluster.submit(self._tables, self._inserts)

    def usage(self) -> list[Usage]:
        return [Usage(server.pid) for server in self._cluster.servers if server.pid]

    def failure(self) -> str | None:
        return self._cluster.failure()


Side = Ours | Theirs


def _measured(
    side: Side,
    what: str,
    changes: int,
    begin: Callable[[], float],
    right: Mapping[str, set[tuple[Any, ...]]],
) -> Figure:
    """Measure from `begin` to the last record; its topics must hold the right rows then."""
    topics = [Topic(side.kafka, name, PARTITIONS) for name in side.topics]
    admin, there = AdminClient({"bootstrap.servers": side.kafka}), False
    cpu_before = sum(of.seconds(look=True) for of in side.usage())
    at = begin()
    seen, last, cpu = -1, at, cpu_before
    deadline = at + PATIENCE_S
    while True:
        there = there or set(side.topics) <= set(admin.list_topics(timeout=10).topics)
        ends, now = sum(sum(topic.ends()) for topic in topics) if there else 0, time.time()
        if ends != seen:
            seen, last = ends, now
            cpu = sum(of.seconds(look=True) for of in side.usage())
        elif ends and now - last > QUIET_S and all(folded(side.kafka, name) == rows for name, rows in right.items()):
            break
        if (failed := side.failure()) is not None:
            raise OperatorError(f"{side.name} has ended", hint=failed)
        if now > deadline:
            raise OperatorError(f"{side.name}: {what}: not the right rows after {PATIENCE_S:.0f} s")
        time.sleep(0.1)
    peak = sum(of.peak_mb() for of in side.usage())
    return Figure(what, side.name, changes, last - at, cpu - cpu_before, peak)


_TIMELINE_COLUMNS: Final = {
    "follow": "BIGINT", "follower": "BIGINT", "tweet": "BIGINT", "sender": "BIGINT", "text": "STRING",
}  # fmt: skip
_COUNTS_COLUMNS: Final = {"sender": "BIGINT", "n": "BIGINT", "newest": "BIGINT"}


def feed(folder: Path, kafka: str, *, tweets: int, changes: int) -> Iterator[Figure]:
    """Yield the figures of both sides: everything, first, and catching up."""
    tell(f"writing {tweets:,} tweets")
    of = Feed(kafka, tweets)
    keys = {"timeline": ("follow", "tweet"), "counts": ("sender",)}
    text = {"timeline": TIMELINE, "counts": COUNTS}
    columns = {"timeline": _TIMELINE_COLUMNS, "counts": _COUNTS_COLUMNS}
    sides: list[Callable[[], Side]] = [
        lambda: Ours(folder / "ours", kafka, "feed", {name: (text[name], keys[name]) for name in keys}),
        lambda: Theirs(
            folder / "flink", kafka, (TWEETS, FOLLOWS), {name: (text[name], keys[name], columns[name]) for name in keys}
        ),
    ]
    for number, made in enumerate(sides):
        side = made()
        tell(f"{side.name}: everything, first")
        with side.ready():
            right = dict(zip(side.topics, (of.timeline(), of.counts()), strict=True))
            yield _measured(side, "everything, first", of.rows, side.start, right)
            records = of.moved(changes, seed=number)
            right = dict(zip(side.topics, (of.timeline(), of.counts()), strict=True))
            tell(f"{side.name}: {changes:,} changes")
            yield _measured(side, "catching up", changes, lambda: of.publish(records), right)  # noqa: B023 - now
            of.rows += changes


def bank(folder: Path, kafka: str, *, transfers: int) -> Iterator[Bank]:
    """Yield what a reader of the sum sees of both sides, which follow the same topic at the same time."""
    source = Source(kafka, ACCOUNT)
    balances = dict.fromkeys(range(ACCOUNTS), 1_000)
    source.publish(source.transaction(*((ACCOUNT, {"id": n, "balance": of}) for n, of in balances.items())))
    ours = Ours(folder / "bank-ours", kafka, "bank", {"bank": (BANK, ("k",))})
    columns = {"k": "STRING", "total": "BIGINT"}
    theirs = Theirs(folder / "bank-flink", kafka, (ACCOUNT,), {"bank": (BANK, ("k",), columns)})
    first = {(("k", "all"), ("total", ACCOUNTS * 1_000))}
    with ours.ready(), theirs.ready():
        for side in (ours, theirs):
            tell(f"{side.name}: the bank")
            _measured(side, "the bank", ACCOUNTS, side.start, {side.topics[0]: first})
        rng, waiting = random.Random(1), list[Record]()
        for number in range(transfers):
            giver, taker = rng.sample(range(ACCOUNTS), 2)
            amount = rng.randrange(1, 100)
            balances[giver] -= amount
            balances[taker] += amount
            waiting += source.transaction(*((ACCOUNT, {"id": n, "balance": balances[n]}) for n in (giver, taker)))
            if number % TOGETHER == TOGETHER - 1 or number == transfers - 1:
                source.publish(waiting)
                waiting = []
        for side in (ours, theirs):
            _measured(side, "the bank", transfers, time.time, {side.topics[0]: first})
            totals = [row and row["total"] for _, row in read(kafka, side.topics[0])]
            yield Bank(side.name, transfers, len(totals), sum(total != ACCOUNTS * 1_000 for total in totals))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tweets", type=int, default=40_000, help="and a tenth as many follows (default: %(default)s)")
    parser.add_argument("--changes", type=int, default=20_000, help="of tweets (default: %(default)s)")
    parser.add_argument("--transfers", type=int, default=2_000, help="of the bank (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    given = parser.parse_args()
    os.environ.setdefault("KAFKA_JVM_PERFORMANCE_OPTS", _BROKER)
    about = {"cores": os.cpu_count(), "load": os.getloadavg()[0], "tweets": given.tweets}
    try:
        with tempfile.TemporaryDirectory(prefix="cdc-bench-") as name:
            folder = Path(name)
            with DevServers(folder / "servers", servers=("kafka",)) as servers:
                kafka = servers["kafka"].url
                figures = list(feed(folder, kafka, tweets=given.tweets, changes=given.changes))
                banks = list(bank(folder, kafka, transfers=given.transfers))
    except CdcError as error:
        sys.exit(f"error: {error}\n{error.hint or ''}")
    except KeyboardInterrupt:
        sys.exit(130)
    print(f"{'':<20}{'':<18}{'changes':>9} {'seconds':>8} {'changes/s':>10} {'CPU µs/change':>14} {'peak MB':>8}")
    for of in figures:
        rate, cpu = of.changes / of.seconds, of.cpu_seconds / of.changes * 1e6
        line = f"{of.what:<20}{of.who:<18}{of.changes:>9,} {of.seconds:>8.1f} {rate:>10,.0f}"
        print(f"{line} {cpu:>14,.0f} {of.peak_mb:>8,.0f}")
    for seen in banks:
        print(f"the bank, {seen.transfers:,} transfers: {seen.who}: {seen.wrong:,} wrong of {seen.read:,} sums read")
    print(f"\n{about['cores']} cores, load {about['load']:.1f} at the start.")
    if given.json:
        found = {**about, "figures": [asdict(of) for of in figures], "bank": [asdict(of) for of in banks]}
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
