"""What is in quarantine, as commands tell of it, and what gets it out: a rebuild, a retry, what comes later."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from cdc.cli.main import cdc
from cdc.config.apply_config import ApplyTable, StoreConfig
from cdc.model.errors import ConfigError, OperatorError
from cdc.model.state import Phase
from spark_apply.events import quarantine
from spark_apply.events.quarantine import Entry, Quarantine, read_entries, read_notes
from spark_apply.events.set_aside import SetAside
from spark_apply.job.job import run_apply
from spark_apply.model.store import open_store
from spark_apply.rebuild import rebuild
from spark_apply.rebuild.quarantine_retry import run_retry
from spark_apply.rebuild.rebuild import run_rebuild
from tests.spark.laws import NO_EVENT, ORDERS, Record, Setting, order
from tests.spark.records import SourceTable, logged, position

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread

COUNTED = {**ORDERS, "count": {"kind": "int32"}}


@pytest.fixture
def setting(apply_spark: SparkSession, kafka: str, tmp_path: Path) -> Setting:
    return Setting(apply_spark, kafka, tmp_path, lambda path: StoreConfig(type="tantivy", path=str(path)))


def change(table: SourceTable, number: int, count: int, at: int, op: str = "u") -> list[Record]:
    return table.event(op, {**order(number), "count": count}, position(at))


def held(setting: Setting) -> list[tuple[str, int]]:
    return [(entry.store, entry.offset) for entry in read_entries(setting.config()).values()]


def run(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(cdc, [str(word) for word in words], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return int(done.return_value or 0), done.stdout, done.stderr


def asked(*words: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*words, "--json")[1])
    return found


def test_what_the_commands_tell(setting: Setting) -> None:
    """list, status, wait, explain and retry; keys and columns by name, no other value of a row."""
    table, publisher = setting.table(columns=COUNTED), setting.publisher()
    publisher.create([table], partitions=1)
    file = setting.folder / "apply.yaml"
    job = {
        "name": "law",
        "source": {"bootstrap_servers": setting.bootstrap, "topic_prefix": setting.prefix},
        "stores": {"copy": {"type": "tantivy", "path": str(setting.folder / "copy")}},
        "tables": {"public.orders": {"stores": ["copy"]}},
        "checkpoint": str(setting.folder / "checkpoints"),
    }
    file.write_text(json.dumps(job))
    assert run("quarantine", "list", file) == (0, "empty: no event is in quarantine\n", "")
    stranger = (table.topic, b'{"id":2}', b'{"secret":"canary-of-a-row"}')
    records = [*change(table, 1, 1, 10), *change(table, 1, 2**40, 11), *change(table, 3, 1, 12)]
    of_another = [(topic, b'{"no":4}', value) for topic, _, value in change(table, 4, 1, 13)]
    publisher.stand(Phase.STREAM, 20, [table], [*records, stranger, *of_another])
    code, out, _ = run("apply", file, "--once")
    assert (code, out.splitlines()[0].split()[-1], out.splitlines()[1].split()[-1]) == (0, "quarantined", "3")
    code, out, _ = run("quarantine", "list", file)
    lines = [line.split() for line in out.splitlines()]
    assert sorted((line[2], line[4], line[5:]) for line in lines[1:]) == [
        ("0/1", '{"id":1}', ["a", "value", "does", "not", "fit:", "count"]),
        ("0/3", '{"id":2}', NO_EVENT.split()),
        ("0/4", '{"no":4}', ["a", "value", "does", "not", "fit:", "id"]),
    ]
    assert "canary-of-a-row" not in out
    assert str(2**40) not in out
    entries = asked("quarantine", "list", file, "--table", "public.orders", "--store", "copy")["entries"]
    assert sorted((entry["offset"], entry["position"]) for entry in entries) == [
        *((1, position(11)), (3, None), (4, position(13)))
    ]
    with pytest.raises(ConfigError, match="--store other: there is no such store"):
        run("quarantine", "list", file, "--store", "other")
    assert asked("status", file)["stores"]["copy"][setting.prefix]["quarantined"] == {"public.orders": 3}
    assert "in quarantine: public.orders 3" in run("status", file)[1]
    token = f"{setting.prefix}:{position(20, 0)}"
    code, out, err = run("wait", file, "--token", token, "--json")
    assert (code, json.loads(out)["quarantined"]) == (0, {"copy": 3})
    assert f"store copy does not have 3 events that are in quarantine: cdc quarantine list {file}" in err
    assert [e["offset"] for e in asked("explain", file, "--table", table.qualified, "--key", 1)["quarantined"]] == [1]
    told = run("explain", file, "--table", table.qualified, "--key", 1)[1]
    assert "0/1 is in quarantine for copy, which does not have it: a value does not fit: count" in told

    assert run("quarantine", "retry", file, "--key", "7")[:2] == (
        *(0, "nothing to apply: no such event is in quarantine\n"),
    )
    code, out, _ = run("quarantine", "retry", file)
    assert (code, [line.split()[5] for line in out.splitlines()[1:]]) == (1, ["left", "left", "left"])
    wider = setting.table(columns={**ORDERS, "count": {"kind": "int64"}}, version=2)
    publisher.versions([wider])
    assert asked("quarantine", "retry", file, "--key", '{"id": 1}')["left"] == 0
    publisher.publish([(table.topic, b'{"id":2}', None), (table.topic, b'{"no":4}', None)])
    assert [one["outcome"] for one in asked("quarantine", "retry", file)["entries"]] == ["gone", "gone"]
    acts = asked("audit", file)["acts"]
    assert [(act["action"], act["about"], act["outcome"]) for act in acts] == [
        ("quarantine retry", {"events": events, "left": left}, "done")
        for events, left in ((0, 0), (3, 3), (1, 0), (2, 0))
    ]
    assert held(setting) == []
    assert setting.contents(wider) == setting.folded(wider, records)


@pytest.mark.full  # the law two_jobs_on_one_target
def test_what_has_another_name_now(setting: Setting) -> None:
    """A job takes its quarantine along; of a store that is told, with what is left under the name that it had."""
    table, publisher = setting.table(columns=COUNTED), setting.publisher()
    publisher.create([table], partitions=1)
    publisher.publish(change(table, 1, 1, 10, "c") + change(table, 2, 1 << 40, 11, "c"))
    setting.apply()
    before = setting.config()
    (entry,) = read_entries(before).values()
    behind = SetAside("copy", table.qualified, table.topic, "it was away", None, 1)
    Quarantine(before).write({behind.id: behind.to_bytes()})
    publisher.publish(change(table, 3, 3, 12, "c"))
    other, told = replace(before, name="other"), list[str]()
    assert run_apply(other, once=True, progress=told.append).tables[table.qualified]["copy"].events == 1
    assert [line for line in told if "was called" in line] == [
        "this job was called law: its quarantine (1 events) and what it has set aside (1 copies) are those of other now"
    ]
    assert list(read_entries(other).values()) == [entry]
    assert not read_notes(before)

    renamed = replace(
        other, stores={"index": other.stores["copy"]}, tables={table.qualified: ApplyTable(stores=("index",))}
    )
    told.clear()
    run_apply(renamed, once=True, progress=told.append)
    (begins,) = (line for line in told if line.startswith("the topics are read from their beginnings"))
    assert f"without {table.qualified} in index; with {table.qualified} in copy, which this file" in begins
    (left,) = (line for line in told if line.startswith("warning"))
    assert "1 events are in the quarantine of a store copy" in left
    assert [of.store for of in read_entries(renamed).values()] == ["copy", "index"]
    assert [of.outcome for of in run_retry(renamed, store="copy")] == ["gone"]
    assert [of.store for of in read_entries(renamed).values()] == ["index"]
    told.clear()
    run_apply(renamed, once=True, progress=told.append)
    assert not [line for line in told if "beginning" in line or "warning" in line]


def test_a_store_with_one_writer_says_so(setting: Setting) -> None:
    table, publisher = setting.table(columns=COUNTED), setting.publisher()
    publisher.create([table], partitions=1)
    publisher.publish([*change(table, 2, 1, 9), *change(table, 1, 2**40, 10)])
    setting.apply()
    writer = open_store(setting.store(setting.folder / "copy"), name="copy", prefix=setting.prefix, spark=None)
    writer.open(setting.target(table))
    with pytest.raises(OperatorError, match=r"has a writer already\s+hint: stop the apply job that writes it"):
        run_retry(setting.config())
    writer.close()


def test_a_delete_that_the_job_has_not_read_yet_wins(setting: Setting) -> None:
    """A retry looks at all that comes after an event: nothing is brought back to life."""
    table, publisher = setting.table(columns=COUNTED), setting.publisher()
    publisher.create([table], partitions=1)
    publisher.publish([*change(table, 1, 1, 9), *change(table, 2, 1, 9), *change(table, 1, 2**40, 10)])
    setting.apply()
    wider = setting.table(columns={**ORDERS, "count": {"kind": "int64"}}, version=2)
    publisher.versions([wider])
    publisher.publish(change(wider, 1, 0, 20, "d"))
    assert [one.outcome for one in run_retry(setting.config())] == ["applied"]
    assert [row["id"] for row in setting.contents(wider).values()] == [2]


@pytest.mark.full  # test_what_the_job_writes_into_the_old_copy_is_due
def test_a_rebuild_meets_the_same_events(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay where they are; where the new copy takes one, it is resolved when that copy is the live one."""
    table, publisher = setting.table(columns=COUNTED), setting.publisher()
    publisher.create([table], partitions=1)
    good = [*change(table, 1, 1, 9), *change(table, 2, 1, 10)]
    bad = change(table, 1, 2**40, 11)
    publisher.publish([*good, *bad])
    setting.apply()
    (rebuilt,) = run_rebuild(setting.config())
    assert (rebuilt.differences.rows, rebuilt.differences.only_old, rebuilt.differences.different) == (2, 0, 0)
    assert held(setting) == [("copy", 2)]
    as_text = setting.config(types={"count": "string"})
    swap = rebuild.Due
    monkeypatch.setattr(rebuild, "Due", _stop)
    with pytest.raises(OperatorError, match="stopped before the swap"):
        run_rebuild(as_text)
    assert held(setting) == [("copy", 2)]
    monkeypatch.setattr(rebuild, "Due", swap)
    run_rebuild(as_text)
    assert held(setting) == []
    assert setting.contents(table, as_text)['{"id":1}']["count"] == str(2**40)


def _stop(*_: object) -> None:
    raise OperatorError("stopped before the swap")


@pytest.mark.full  # test_what_the_commands_tell
def test_a_history_lacks_the_event_until_it_is_applied(apply_spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    """A newer event does not make up for a version that is missing."""
    store: Callable[[Path], StoreConfig] = lambda path: StoreConfig(type="iceberg", path=str(path))  # noqa: E731
    setting = Setting(apply_spark, kafka, tmp_path, store)
    table, publisher = setting.table(columns=COUNTED), setting.publisher()
    publisher.create([table], partitions=1, logs={table.name})
    config = replace(setting.config(), tables={"public.orders": ApplyTable(stores=("copy",), mode="history")})

    def versions() -> list[tuple[str, int]]:
        spark = setting.spark.newSession()
        open_store(config.stores["copy"], name="copy", prefix=setting.prefix, spark=spark)
        rows = spark.sql("SELECT _cdc_position, count FROM copy.public.orders_history ORDER BY 1").collect()
        return [(row[0], row[1]) for row in rows]

    publisher.publish(logged(change(table, 1, 1, 10) + change(table, 1, 2**40, 11) + change(table, 1, 3, 12)))
    setting.apply(config)
    publisher.publish(logged(change(table, 1, 4, 13)))
    setting.apply(config)
    assert versions() == [(position(10), 1), (position(12), 3), (position(13), 4)]
    assert held(setting) == [("copy", 1)]
    publisher.versions([setting.table(columns={**ORDERS, "count": {"kind": "int64"}}, version=2)])
    assert [one.outcome for one in run_retry(config)] == ["applied"]
    assert versions()[1] == (position(11), 2**40)
    assert held(setting) == []


def test_a_key_that_no_note_has_room_for_ends_no_job(kafka: str, tmp_path: Path) -> None:
    """Any producer may write one to a topic: it is noted without the key, once, and the others as they are."""
    no_spark: Any = None
    config = Setting(no_spark, kafka, tmp_path, lambda path: StoreConfig(type="tantivy", path=str(path))).config()
    topic = f"{config.source.topic_prefix}.public.orders"
    keys = ['{"id":1}', '"' * 600_000, "x" * 890_000, None]  # a quote is two characters in JSON
    entries = [
        Entry("copy", "public.orders", topic, 0, offset, key, None, "not an event", 1)
        for offset, key in enumerate(keys)
    ]
    beyond = OperatorError("the limit")
    assert [Quarantine(config).put(entries, beyond=beyond) for _ in range(2)] == [4, 0]
    noted = [(entry.key and len(entry.key), entry.reason) for entry in read_entries(config).values()]
    too_long = "not an event; its key is too long to be noted here"
    assert noted == [(8, "not an event"), (None, too_long), (890_000, "not an event"), (None, "not an event")]


def test_one_that_is_noted_without_its_key_is_tried_again(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the key of its record, with what is newer of that key: a later delete wins."""
    monkeypatch.setattr(quarantine, "_MOST_BYTES", 0)
    table, publisher = setting.table(columns=COUNTED), setting.publisher()
    publisher.create([table], partitions=1)
    records = [*change(table, 1, 2**40, 10), *change(table, 2, 2**40, 11), *change(table, 3, 3, 12)]
    publisher.publish(records)
    setting.apply()
    assert [entry.key for entry in read_entries(setting.config()).values()] == [None, None]
    later = change(table, 2, 2, 13, "d")
    publisher.publish(later)
    wider = setting.table(columns={**ORDERS, "count": {"kind": "int64"}}, version=2)
    publisher.versions([wider])
    assert [of.outcome for of in run_retry(setting.config())] == ["applied", "applied"]
    assert held(setting) == []
    setting.apply()
    assert setting.contents(wider) == setting.folded(wider, records + later)


def test_records_of_another_producer(setting: Setting) -> None:
    """With a text for a position that is none, which no store could compare; with a key that is no text."""
    table, publisher = setting.table(columns=COUNTED), setting.publisher()
    publisher.create([table], partitions=1)
    good = [*change(table, 1, 1, 10), *change(table, 2, 1, 11)]
    ((topic, key, value),) = change(table, 9, 7, 12)
    assert value is not None
    written = position(12).encode()
    odd = (b"garbage", b"", written.replace(b"0", b"z"), written.upper() + b"\\n")
    bad = [(topic, key, value.replace(written, text)) for text in odd]
    bad += [(topic, b'{"id":\xff}', value), (topic, b"\xff", value)]
    later = [*change(table, 1, 2, 13), *change(table, 3, 1, 14)]
    publisher.publish([*good, *bad, *later])
    assert setting.apply().tables[table.qualified]["copy"].quarantined == len(bad)
    assert setting.contents(table) == setting.folded(table, good + later)
    assert setting.rows(table) == 3
    no_position = "not an event: source.position is no position of a connector"
    reasons = [entry.reason for entry in read_entries(setting.config()).values()]
    assert sorted(reasons) == ["a value does not fit: id"] * 2 + [no_position] * len(odd)


def test_an_event_of_a_version_that_nobody_knows_stops_no_other_table(setting: Setting) -> None:
    """Once the schema topic has the version, the table goes on where it was."""
    table, other, publisher = setting.table(), setting.table("other"), setting.publisher()
    publisher.create([table, other], partitions=1)
    records = [r for of in (table, other) for n in (1, 2) for r in of.event("c", order(n), position(10 + n))]
    publisher.publish(records)
    setting.apply()
    unknown = setting.table(version=9, columns={**ORDERS, "note": {"kind": "string"}})
    more = [
        *unknown.event("u", {**order(1, "paid"), "note": "x"}, position(20)),
        *other.event("u", order(1, "sent"), position(21)),
    ]
    publisher.publish(more)
    said = "public.orders: an event names version 9, which the schema topic does not hold"
    assert setting.apply().aside == {"public.orders": {"copy": said}}
    assert setting.contents(other) == setting.folded(other, records + more)
    publisher.versions([unknown])
    assert setting.apply().aside == {}
    assert setting.contents(unknown) == setting.folded(unknown, records + more)
