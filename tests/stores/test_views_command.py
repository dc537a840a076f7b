"""Streams that others write, and the command that runs views."""

from __future__ import annotations

import io
import json
import shutil
import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import pytest
import yaml
from click.testing import CliRunner
from confluent_kafka import OFFSET_END, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from cdc.cli.main import cdc as command
from cdc.config.view_pattern import PatternConfig
from cdc.config.views import MatchConfig, StreamConfig, StreamRegistry, ViewConfig
from cdc.model.errors import CdcError, ConfigError
from spark_apply.views.job import run_views
from spark_apply.views.proof.explain import explain_view
from spark_apply.views.proof.verify import verify_views
from spark_apply.views.publishing.status import view_status
from tests.scripted.registry import scripted_registry
from tests.spark.laws import until
from tests.views.bench import EITHER, ViewBench, most_over
from tests.views.cases import CASES, TABLES, at
from tests.views.one_job import killed

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
_CLICKS = StreamConfig(
    topic="clicks",
    schema="id STRING, search BIGINT, at TIMESTAMP, `n n` DECIMAL(9,2)",
    key=("id",),
    time="at",
    keep="30m",
)

_KEPT = {"retention.ms": "-1"}
"""The events of these tests are months old when they are written."""


@pytest.mark.full  # tests/property/test_view_reading.py
@EITHER
def test_streams_that_others_write(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """A topic of JSON objects: read once, each key once, late ones and what is no event left out and counted."""
    most_over(monkeypatch, 0)  # on executors all of it waits, and is kept, in tables of the lake
    bench = ViewBench(kafka, tmp_path, {"s": TABLES["s"]}, {}, engine=engine)
    topic = f"{bench.prefix}-clicks"
    bench.views = {
        "outcome": ViewConfig(
            sql="SELECT s.id, count(c.id) AS n, min(c.at) AS first, sum(c.`n n`) AS total FROM public.s s "
            "LEFT JOIN stream.clicks c ON c.search = s.id GROUP BY s.id",
            key=("id",),
        ),
        "minutes": ViewConfig(
            sql="SELECT date_trunc('MINUTE', at) AS minute, count(*) AS n FROM stream.clicks GROUP BY 1",
            key=("minute",),
        ),
        "again": ViewConfig(
            pattern=PatternConfig(
                of="stream.clicks",
                by=("search",),
                match="one other{5m}",
                define={"one": "id IS NOT NULL", "other": "`n n` > 2"},
            ),
            key=("search", "one_at"),
        ),
        "found": ViewConfig(
            match=MatchConfig(queries="stream.clicks", query="id", docs="stream.clicks", fields=("id",)),
            key=("query", "doc"),
        ),
    }
    bench.streams = {"clicks": replace(_CLICKS, topic=topic)}
    with pytest.raises(ConfigError, match=rf"streams\.clicks\.topic: there is no topic {topic}"):
        bench.run()
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([NewTopic(topic, 2, 1, config=_KEPT)])[topic].result(30)
    producer = Producer({"bootstrap.servers": kafka, "partitioner": "murmur2_random"})

    def click(key: str, search: int, clock: str, *, written: str, partition: int = 0, **more: object) -> None:
        event = {"id": key, "search": search, "at": f"2026-01-01T{clock}:00Z", "n n": 1.5, "unknown": [1], **more}
        producer.produce(topic, json.dumps(event), partition=partition, timestamp=at(written) // 1000)

    bench.transaction(("s", "c", {"id": 1, "at": at("10:00")}), at_ms=at("10:00") // 1000)
    click("a", 1, "10:05", written="10:05")
    click("a", 1, "10:05", written="10:06", partition=1)  # a producer without idempotence
    click("late", 1, "10:01", written="10:31")
    click("b", 2, "10:06", written="10:06")
    ms = json.dumps({"id": "ms", "search": 1, "at": at("10:05") // 1000})
    for value in ("no JSON: secret", "[]", '{"search": 1}', '{"id": "c", "at": "when?"}', ms):
        producer.produce(topic, value, partition=1)
    producer.produce(topic, None, key=b"a")
    producer.flush(30)
    told: list[str] = []
    run_views(bench.config, once=True, progress=told.append)
    assert bench.events("outcome") == [
        ("c", (1,), {"id": 1, "n": 1, "first": "2026-01-01T10:05:00Z", "total": "1.50"}),
    ]
    assert bench.signs("minutes") == ["+2026-01-01T10:05:00Z", "+2026-01-01T10:06:00Z"]
    assert (bench.signs("again"), bench.signs("found")) == ([], ["+a,a", "+b,b"])
    assert any(line.startswith("warning: 5 records of stream clicks are no events of it: left out (") for line in told)
    assert "warning: 1 events of stream.clicks came later than keep: they are left out" in told
    assert not any("secret" in line for line in told)
    click("d", 1, "10:07", written="10:07", **{"n n": "2.25"})
    producer.flush(30)
    with monkeypatch.context() as patched:
        killed(patched, "before the state")
        with pytest.raises((CdcError, RuntimeError)):
            bench.run()
    assert bench.run().events == 4, "without anything new in the captured tables, nor in the topic since"
    assert view_status(bench.config)["streams"] == {"clicks": {"unreadable": 5}}
    assert (bench.signs("again"), bench.signs("found")) == (["+1,2026-01-01T10:05:00Z"], ["+d,d"])
    assert [row["n"] for _, _, row in bench.events("outcome")] == [2]
    assert bench.run().events == 0
    assert [of.agrees for of in verify_views(bench.config)] == [True] * 4
    explained = explain_view(bench.config, "outcome", "1")
    assert {row.table for row in explained.rows} == {"public.s", "stream.clicks"}
    assert explained.published == explained.computed
    shutil.rmtree(bench.folder / "state")
    assert bench.run().events == 0
    bench.streams = {"clicks": replace(_CLICKS, topic=topic, keep="1h")}
    with pytest.raises(ConfigError, match=r"outcome \(generation 1\): streams: “.1h.,” was “.30m.,”"):
        bench.run()
    bench.redefine()
    assert [row["n"] for _, _, row in bench.events("outcome")] == [3], "what was late is not, now"
    click("e", 1, "10:08", written="10:08")
    producer.flush(30)
    gone = TopicPartition(topic, 0, OFFSET_END)
    admin.delete_records([gone])[gone].result(30)
    with pytest.raises(CdcError, match=rf"streams\.clicks: 1 records of topic {topic} were removed before they were"):
        bench.run()
    goes_on = {"clicks": replace(bench.streams["clicks"], on_loss="go_on")}
    bench.streams = goes_on
    told.clear()
    assert run_views(bench.config, once=True, progress=told.append).events == 0
    what = f"warning: streams.clicks: 1 records of topic {topic} were removed before they were read"
    assert what in told, "who goes on is told what is missing"
    admin.delete_topics([topic])[topic].result(30)
    until(lambda: topic not in admin.list_topics(timeout=60).topics, within_s=60)
    admin.create_topics([NewTopic(topic, 2, 1, config=_KEPT)])[topic].result(30)
    bench.streams = {"clicks": replace(goes_on["clicks"], on_loss="stop")}
    with pytest.raises(CdcError, match=rf"topic {topic} is not the one that was read: it was deleted and made again"):
        bench.run()
    click("f", 1, "10:09", written="10:09")
    producer.flush(30)
    bench.streams = goes_on
    told.clear()
    run_views(bench.config, once=True, progress=told.append)
    assert sum("it was deleted and made again; it is read too, from its beginning" in line for line in told) == 1
    assert [row["n"] for _, _, row in bench.events("outcome")] == [4], "what was read of the topic before stays"


@pytest.mark.full  # tests/unit/test_watermarks.py
@EITHER
def test_events_are_taken_while_the_connector_is_down(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, engine: str
) -> None:
    """At the position where the tables are, and at the clock: no deadline passes."""
    bench = ViewBench(kafka, tmp_path, {"s": TABLES["s"]}, {}, engine=engine)
    topic = f"{bench.prefix}-taps"
    bench.streams = {
        "taps": StreamConfig(topic=topic, schema="id STRING, n BIGINT, at TIMESTAMP", key=("id",), time="at")
    }
    bench.views = {
        "every": ViewConfig(sql="SELECT id, n FROM stream.taps", key=("id",)),
        "joined": ViewConfig(
            sql="SELECT s.id, count(t.id) AS n FROM public.s s LEFT JOIN stream.taps t ON t.n = s.id GROUP BY s.id",
            key=("id",),
        ),
        "over": ViewConfig(sql="SELECT id FROM stream.taps WHERE at + INTERVAL 1 MINUTE <= clock()", key=("id",)),
    }
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([NewTopic(topic, 2, 1, config=_KEPT)])[topic].result(30)
    producer = Producer({"bootstrap.servers": kafka})

    def tap(key: str, n: int, clock: str) -> None:
        producer.produce(topic, json.dumps({"id": key, "n": n, "at": f"2026-01-01T{clock}:00Z"}))
        producer.flush(30)

    bench.transaction(("s", "c", {"id": 1, "at": at("10:00")}), at_ms=at("10:00") // 1000)
    assert bench.run().stopped == {}
    bench.signs("joined")
    stop, ended, told = threading.Event(), list[Any](), list[str]()
    run = partial(run_views, bench.config, once=False, progress=told.append, stop=stop)
    job = threading.Thread(target=lambda: ended.append(run()))
    job.start()
    until(lambda: any(line.startswith("following") for line in told), within_s=120)
    before = view_status(bench.config)["position"]
    for key, n, clock in (("a", 1, "09:58"), ("b", 2, "10:01"), ("c", 1, "10:02")):
        seen = len(bench.whole_events("every"))
        tap(key, n, clock)
        until(lambda seen=seen: len(bench.whole_events("every")) > seen, within_s=120)  # type: ignore[misc]
    stop.set()
    job.join(120)
    assert view_status(bench.config)["position"] == before
    assert bench.signs("every") == ["+a", "+b", "+c"]
    assert [row["n"] for _, _, row in bench.events("joined")] == [1, 2]
    assert bench.signs("over") == ["+a"]
    assert all(of.agrees for of in verify_views(bench.config))
    assert bench.run().events == 0


_FIRST: Any = {
    "type": "record", "name": "click", "fields": [
        {"name": "id", "type": "string"},
        {"name": "search", "type": ["null", "long"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "kind", "symbols": ["ad", "link"]}},
        {"name": "f", "type": "double"},
        {"name": "raw", "type": "bytes"},
    ],
}  # fmt: skip
_LATER: Any = {**_FIRST, "fields": [{"name": "page", "type": ["null", "string"]}, *_FIRST["fields"][:-1]]}


@EITHER
def test_streams_in_avro(apply_spark: SparkSession, kafka: str, tmp_path: Path, engine: str) -> None:
    """Each record names its schema, which may come late; what is none is left out and counted, as in JSON."""
    bench = ViewBench(kafka, tmp_path, {"s": TABLES["s"]}, {}, engine=engine)
    topic = f"{bench.prefix}-clicks"
    sql = "SELECT c.id, s.id AS s, c.at, c.price, c.kind, c.f, c.raw, c.page FROM stream.clicks c"
    bench.views = {"seen": ViewConfig(sql=f"{sql} LEFT JOIN public.s s ON s.id = c.search", key=("id",))}
    schema = (
        "id STRING, search BIGINT, at TIMESTAMP, price DECIMAL(9,2), kind STRING, f DOUBLE, raw BINARY, page STRING"
    )
    stream = StreamConfig(topic=topic, schema=schema, key=("id",), time="at", keep="30m", format="avro")
    bench.streams = {"clicks": stream}
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([NewTopic(topic, 2, 1, config=_KEPT)])[topic].result(30)
    producer = Producer({"bootstrap.servers": kafka})

    def click(number: int, schema: Any, key: str, clock: str, behind: bytes = b"", **more: Any) -> None:
        moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=at(clock) - at("0:00") + 7)
        event = {"id": key, "search": 1, "at": moment, "price": Decimal("1.50"), "kind": "ad", "f": 0.1, "raw": b"\0a"}
        out = io.BytesIO(b"\0" + number.to_bytes(4, "big"))
        out.seek(0, io.SEEK_END)
        fastavro.schemaless_writer(out, schema, {**event, **more})
        producer.produce(topic, out.getvalue() + behind, timestamp=at("10:10") // 1000)

    with scripted_registry() as registry:
        bench.registry = StreamRegistry(url=registry.url, timeout_s=5)
        first = registry.keep("clicks", {"schema": json.dumps(_FIRST)})
        bench.transaction(("s", "c", {"id": 1, "at": at("10:00")}), at_ms=at("10:10") // 1000)
        click(first, _FIRST, "a", "10:05")
        click(first, _FIRST, "late", "9:30")
        click(first, _FIRST, "false", "10:05", behind=b"of a longer schema")
        of_first = b"\0" + first.to_bytes(4, "big")
        huge = b"\xd8\xff\xff\xff\x0fa"  # a text of two gigabytes, as its length says
        for value in (b"no Avro: secret", b"\0", of_first + b"secret", *[of_first + huge] * 4, None):
            producer.produce(topic, value, key=b"k")
        producer.flush(30)
        bench.run()
        row = {"s": 1, "at": "2026-01-01T10:05:00.000007Z", "price": "1.50", "kind": "ad", "f": 0.1, "page": None}
        assert bench.events("seen") == [("c", ("a",), {"id": "a", "raw": "AGE=", **row})]
        status = view_status(bench.config)
        assert (status["streams"], status["views"]["seen"]["late"]) == ({"clicks": {"unreadable": 8}}, 1)
        click(first + 1, _LATER, "b", "10:05", page="/b", search=None)
        producer.flush(30)
        with pytest.raises(CdcError, match=rf"records name schema {first + 1}, which the registry does not have"):
            bench.run()
        registry.keep("clicks", {"schema": json.dumps(_LATER)})
        registry.status = 503
        with pytest.raises(CdcError, match=r"schema registry at .*: HTTP 503") as away:
            bench.run()
        assert "sink.registry" not in f"{away.value.hint}"
        registry.status = None
        assert bench.run().events == 1
        assert bench.events("seen") == [("c", ("b",), {"id": "b", "raw": None, **row, "s": None, "page": "/b"})]
        (verified,) = verify_views(bench.config)
        assert verified.agrees, verified
        shutil.rmtree(bench.folder / "state")
        click(first + 9, _LATER, "c", "10:05", page=None)
        ring = {"type": "record", "name": "ring", "fields": [{"name": "next", "type": ["null", "ring"]}]}
        producer.produce(topic, b"\0" + registry.keep("r", {"schema": json.dumps(ring)}).to_bytes(4, "big") + b"\0")
        either = {**_FIRST, "fields": [{"name": "id", "type": ["string", "long"]}]}
        click(registry.keep("e", {"schema": json.dumps(either)}), either, "d", "10:05")
        producer.flush(30)
        with pytest.raises(CdcError, match=rf"schema {first + 2} of the registry is not read here: next is ring again"):
            bench.run()
        bench.streams = {"clicks": replace(stream, on_loss="go_on")}
        assert bench.run().events == 0
        assert view_status(bench.config)["streams"] == {"clicks": {"unreadable": 11}}


@EITHER
def test_the_command(apply_spark: SparkSession, kafka: str, tmp_path: Path, engine: str) -> None:
    tables = {name: TABLES[name] for name in ("t", "f", "c")}
    bench = ViewBench(kafka, tmp_path, tables, {"timeline": CASES["1 tweet first"].view}, engine=engine)
    bench.transaction(
        ("t", "c", {"id": 1, "sender": "bob", "likes": 0}), ("f", "c", {"id": 1, "follower": "ann", "followee": "bob"})
    )
    file = tmp_path / "views.yaml"
    source = {"bootstrap_servers": kafka, "topic_prefix": bench.prefix}
    view = {"sql": CASES["1 tweet first"].view.sql, "key": ["follower", "tweet"]}
    made = {
        "name": "shop-views",
        "source": source,
        "state": str(tmp_path / "state"),
        "views": {"timeline": view},
        "engine": engine,
    }
    file.write_text(yaml.safe_dump(made))

    def cdc(*words: str) -> Any:
        found = CliRunner().invoke(command, ["view", *words, str(file), "--json"], catch_exceptions=False)
        assert found.exit_code == 0
        return json.loads(found.stdout)

    assert cdc("check") == cdc("plan")
    assert cdc("plan")["views"]["timeline"]["reads"] == ["public.f", "public.t"]
    assert not (tmp_path / "state").exists()
    assert cdc("status")["position"] is None
    assert cdc("run", "--once")["events"] == 1
    assert cdc("status")["views"]["timeline"]["rows"] == 1
    file.write_text(yaml.safe_dump({**made, "views": {"timeline": {**view, "sql": "SELECT * FROM public.tt"}}}))
    with pytest.raises(ConfigError, match=r"views\.timeline\.sql"):
        CliRunner().invoke(command, ["view", "run", str(file)], standalone_mode=False, catch_exceptions=False)
    twice = {"sql": "SELECT id, likes AS v, sender AS V FROM public.t", "key": ["id"]}
    file.write_text(yaml.safe_dump({**made, "views": {"twice": twice}}))
    with pytest.raises(
        ConfigError, match=r"views twice: columns of view\.twice differ in upper and lower case alone: V, v|twice"
    ):
        CliRunner().invoke(command, ["view", "check", str(file)], standalone_mode=False, catch_exceptions=False)
    for reads, sql, what in _WRONG_READS:
        file.write_text(yaml.safe_dump({**made, "views": {"v": {"sql": sql, "key": ["id"], "from": reads}}}))
        with pytest.raises(ConfigError, match=what):
            CliRunner().invoke(command, ["view", "check", str(file)], standalone_mode=False, catch_exceptions=False)


_LOOKUP = "SELECT a.id, b.id AS other FROM public.t a JOIN public.f b ON b.follower = a.sender"
_WRONG_READS: list[tuple[Mapping[str, Any], str, str]] = [
    ({"public.tt": {"time": "at"}}, "SELECT id FROM public.t", r"views\.v\.from\.public\.tt: it is no captured table"),
    ({"public.t": {"time": "sent"}}, "SELECT id FROM public.t", r"from\.public\.t\.time: there is no column sent"),
    ({"public.t": {"time": "sender"}}, "SELECT id FROM public.t", r"time: sender is string, which is no time"),
    ({"public.f": {"at": "now"}}, "SELECT id FROM public.t", r"from: public\.f is not read by the SQL"),
    ({"public.f": {"at": "event"}}, _LOOKUP, r"looked up at: event, and no table beside it has a time"),
    (
        {"public.f": {"at": "event"}, "public.c": {"time": "at"}},
        "SELECT c.id FROM public.c c JOIN public.f b ON c.id = b.id",
        r"takes its log, topic \S+\.log\.public\.f: it does not exist",
    ),
    (
        {"public.f": {"at": "arrival"}, "public.c": {"time": "at"}},
        "SELECT * FROM public.c c JOIN public.f b ON c.id = b.id",
        r"\* in a SELECT that looks up rows as they were",
    ),
    (
        {"public.f": {"at": "arrival"}, "public.c": {"time": "at"}},
        "SELECT c.id FROM public.f b JOIN public.c c ON c.id = b.id",
        r"public\.f is looked up at: arrival: it is joined by JOIN or LEFT JOIN, with ON",
    ),
]
