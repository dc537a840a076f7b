"""One bad row, or one table that cannot go on, stops, delays and falsifies no other."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from opensearchpy import OpenSearch
from pyspark.sql import SparkSession

from cdc.cli.inspecting.verify import report
from cdc.cli.main import cdc
from cdc.config.apply_config import ApplySource, StoreConfig
from cdc.config.config import load_apply
from cdc.model.errors import ConfigError, OperatorError
from cdc.model.state import Phase, State
from spark_apply.events.kafka.client import unreachable
from spark_apply.events.quarantine import read_entries
from spark_apply.events.set_aside import read_set_aside
from spark_apply.job import job as job_module
from spark_apply.job import start
from spark_apply.job.catch_up import new_tables
from spark_apply.job.job import ApplySummary, run_apply
from spark_apply.job.topics import compacted_deletes
from spark_apply.job.topics.identity import FollowedTopics
from spark_apply.model.altered import AlteredError
from spark_apply.model.store import Applied, Batch, open_store
from spark_apply.rebuild import rebuild
from spark_apply.rebuild.quarantine_retry import run_retry
from spark_apply.rebuild.rebuild import run_rebuild
from spark_apply.stores.delta.store import DeltaStore
from spark_apply.stores.iceberg.store import IcebergStore
from spark_apply.stores.opensearch.fields import field_name
from spark_apply.verify.verify import verify
from tests.conftest import Database
from tests.pushes import some_each_push
from tests.spark.laws import ORDERS, Record, Setting, forget_the_last_commit, order, until
from tests.spark.records import Publisher, SourceTable, position
from tests.stores.test_shaping import Held

if TYPE_CHECKING:
    from cdc.capture.snapshots.published_rows import PublishedTables

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread

FACTS = {
    "id": {"kind": "int64"},
    "status": {"kind": "string"},
    "total": {"kind": "decimal"},
    "tags": {"kind": "array", "element": {"kind": "string"}},
}
CONSTRAINTS = (
    "ALTER TABLE facts ADD CONSTRAINT no_bad CHECK (status <> 'check')",
    "CREATE UNIQUE INDEX one_of_each ON facts (status) WHERE status LIKE 'unique%'",
    "CREATE INDEX by_status ON facts (status)",
    "ALTER TABLE facts ADD CONSTRAINT apart EXCLUDE USING btree (total WITH =) WHERE (total > 4000)",
    "CREATE TABLE allowed (status text PRIMARY KEY)",
    "INSERT INTO allowed SELECT unnest(array['new', 'unique', 'trigger', 'check', 'late', 'zero', 'left out'])",
    (
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF new.status = 'trigger' THEN RAISE EXCEPTION 'secret %', new.total; END IF;"
        " IF new.status = 'left out' THEN RETURN NULL; END IF;"
        " IF new.status = 'zero' THEN new.total = 1 / (new.id - new.id); END IF;"
        " IF new.status = 'gone' THEN INSERT INTO nowhere VALUES (1); END IF; RETURN new; END $$"
    ),
    "CREATE TRIGGER refusing BEFORE INSERT OR UPDATE ON facts FOR EACH ROW EXECUTE FUNCTION refuse()",
)
DEFERRED = (
    "ALTER TABLE facts ADD CONSTRAINT known FOREIGN KEY (status) REFERENCES allowed DEFERRABLE INITIALLY DEFERRED"
)


@pytest.fixture
def warehouse(apply_spark: SparkSession, kafka: str, postgres18: Database, tmp_path: Path) -> Setting:
    return Setting(apply_spark, kafka, tmp_path, lambda _: StoreConfig(type="postgres", url=postgres18.url))


def fact(table: SourceTable, number: int, at: int, status: str = "new", **more: Any) -> list[Record]:
    return table.event("u", {"id": number, "status": status, "total": "1.5", "tags": ["a"], **more}, position(at))


def reasons(setting: Setting) -> dict[str | None, str]:
    return {entry.key: entry.reason for entry in read_entries(setting.config()).values()}


def test_rows_that_postgresql_refuses_block_their_own_keys(warehouse: Setting, postgres18: Database) -> None:
    """By their values, sizes, constraints, triggers; in the batch, or when they are shown later; others are applied."""
    setting = warehouse
    table, named = setting.table("facts", FACTS), setting.table("named", {"k": {"kind": "string"}}, key=("k",))
    publisher = setting.publisher()
    publisher.create([table, named], partitions=1)
    good = [r for n in range(20) for r in fact(table, n, 10 + n)] + named.event("c", {"k": "a"}, position(11))
    publisher.stand(Phase.STREAM, 50, [table, named], good)
    setting.apply()
    assert setting.contents(table) == setting.folded(table, good)
    postgres18.execute(*CONSTRAINTS, DEFERRED)
    huge = "".join(f"{n:x}" for n in range(9_000))
    refused = {
        1: fact(table, 1, 60, "check"),
        100: fact(table, 100, 60, "unique"),
        101: fact(table, 101, 61, "unique"),
        102: fact(table, 102, 62, "unknown"),
        103: fact(table, 103, 63, "trigger", total="94711749"),
        104: fact(table, 104, 64, "zero"),
        105: fact(table, 105, 65, total="1e200000"),
        106: fact(table, 106, 66, tags=["\x00"]),
        107: fact(table, 107, 67, huge),
        109: fact(table, 109, 69, total="5000.00"),
        110: fact(table, 110, 70, "nul\x00"),
        111: fact(table, 111, 71, "gone"),
        4: fact(table, 4, 71, "left out"),
        113: fact(table, 113, 71, "left out"),
    }
    more = [*fact(table, 2, 72, "late"), *fact(table, 200, 73), *named.event("c", {"k": "b"}, position(74))]
    more += [*table.event("d", {"id": 3}, position(75)), *fact(table, 108, 68, total="5000")]
    waiting = {112: fact(table, 112, 95, "check")}
    bad = [record for records in refused.values() for record in records]
    long_key = named.event("c", {"k": huge}, position(76))
    publisher.stand(Phase.STREAM, 90, [table, named], [*bad, *more, *long_key, *waiting[112], *fact(table, 201, 96)])
    counts = setting.apply().tables
    assert counts["public.facts"]["copy"].quarantined == 13
    assert counts["public.named"]["copy"].quarantined == 1
    del refused[100]  # the first of the two is taken
    more += fact(table, 100, 60, "unique")
    assert setting.contents(table) == setting.folded(table, [*good, *more])
    assert setting.contents(named) == setting.folded(named, [*good, *more])
    told = reasons(setting)
    assert {json.loads(key)["id"] for key in told if key and "id" in json.loads(key)} == set(refused)
    by_id = {json.loads(key)["id"]: why for key, why in told.items() if key and "id" in json.loads(key)}
    assert "check violation (23514), constraint no_bad" in by_id[1]
    assert "unique violation (23505), constraint one_of_each" in by_id[101]
    assert "foreign key violation (23503), constraint known" in by_id[102]
    assert "raise exception (P0001)" in by_id[103]
    assert "division by zero (22012)" in by_id[104]
    assert "(22003)" in by_id[105]
    assert "(22P05)" in by_id[106]
    assert "program limit exceeded (54000)" in by_id[107]
    assert "exclusion violation (23P01), constraint apart" in by_id[109]
    assert "undefined table (42P01)" in by_id[111]
    assert by_id[4] == by_id[113] == "PostgreSQL refuses the row: triggered data change violation (27000)"
    assert "94711749" not in "".join(told.values())
    assert any(huge in (key or "") and "(54000)" in why for key, why in told.items())

    # a row that waited is refused when it is shown, in a run without a batch
    shown = fact(table, 201, 96)
    publisher.stand(Phase.STREAM, 120, [table, named])
    setting.apply()
    assert '{"id":112}' in reasons(setting)
    assert setting.contents(table) == setting.folded(table, [*good, *more, *shown])
    assert setting.marks(table)[0].complete.position == position(120, 0)

    # what is corrected at the source, or no longer refused, comes
    postgres18.execute("ALTER TABLE facts DROP CONSTRAINT no_bad, DROP CONSTRAINT known, DROP CONSTRAINT apart",
                       "DROP INDEX one_of_each, by_status", "DROP TRIGGER refusing ON facts")  # fmt: skip
    done = {one.entry.key: one.outcome for one in run_retry(setting.config(), table="public.facts")}
    left = {105, 106, 110}
    assert {key for key, outcome in done.items() if outcome == "left"} == {f'{{"id":{number}}}' for number in left}
    taken = [r for number, records in {**refused, **waiting}.items() if number not in left for r in records]
    assert setting.contents(table) == setting.folded(table, [*good, *more, *shown, *taken])


def test_a_row_in_quarantine_stays_there_when_its_batch_comes_again(warehouse: Setting, postgres18: Database) -> None:
    """Killed behind the store's commit: the store has the batch without it. A newer event, or a retry, takes it out."""
    setting = warehouse
    table, publisher = setting.table("facts", FACTS), setting.publisher()
    publisher.create([table], partitions=1)
    good = fact(table, 0, 10)
    publisher.stand(Phase.STREAM, 20, [table], good)
    setting.apply()
    postgres18.execute(CONSTRAINTS[0])
    bad, other, more = fact(table, 1, 30, "check"), fact(table, 3, 31, "check"), fact(table, 2, 32)
    publisher.stand(Phase.STREAM, 40, [table], [*bad, *other, *more])
    setting.apply()
    assert set(reasons(setting)) == {'{"id":1}', '{"id":3}'}
    forget_the_last_commit(setting.folder / "checkpoints")
    assert setting.apply().batches == 1
    assert set(reasons(setting)) == {'{"id":1}', '{"id":3}'}
    postgres18.execute("ALTER TABLE facts DROP CONSTRAINT no_bad")
    newer = fact(table, 3, 50)
    publisher.stand(Phase.STREAM, 60, [table], newer)
    setting.apply()
    assert set(reasons(setting)) == {'{"id":1}'}
    run_retry(setting.config())
    assert reasons(setting) == {}
    assert setting.contents(table) == setting.folded(table, [*good, *bad, *more, *newer])


LEFT = {1, 2, 3, 4, 5}
_TELL = (
    "CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN INSERT INTO public.of_told VALUES (old.id); RETURN NULL; END $$"
)
EXCHANGES = {
    "taken": (
        set[int](),
        "ALTER TABLE taken ADD UNIQUE (status), ALTER COLUMN status SET NOT NULL",
        "ALTER TABLE taken ADD EXCLUDE USING btree (status WITH =)",
        "CREATE UNIQUE INDEX ON taken (lower(status)) NULLS NOT DISTINCT WHERE id < 900",
        "CREATE TABLE of_taken (id bigint REFERENCES taken)",
        "INSERT INTO of_taken VALUES (1), (2)",
    ),
    "refusing": (
        {7, 8},
        "CREATE UNIQUE INDEX ON refusing (left(status, 1))",
        "ALTER TABLE refusing ADD CHECK (status <> 'bad')",
    ),
    "theirs": (LEFT, "ALTER TABLE theirs ADD UNIQUE (status), ADD note text DEFAULT 'a note'"),
    "at_end": (LEFT, "ALTER TABLE at_end ADD UNIQUE (status), ADD UNIQUE (status) DEFERRABLE"),
    "cascading": (
        LEFT,
        "ALTER TABLE cascading ADD UNIQUE (status)",
        "CREATE TABLE of_cascading (id bigint REFERENCES cascading ON DELETE CASCADE)",
        "INSERT INTO of_cascading VALUES (1), (2)",
    ),
    "told": (
        LEFT,
        "ALTER TABLE told ADD UNIQUE (status)",
        "CREATE TABLE of_told (id bigint)",
        _TELL,
        "CREATE TRIGGER tell AFTER DELETE ON told FOR EACH ROW EXECUTE FUNCTION tell()",
    ),
}
"""By copy, which rows are refused, and what another hand has done to it."""


def test_rows_that_exchange_unique_values(warehouse: Setting, postgres18: Database) -> None:
    """Two rows exchange theirs, three move along, a deleted row's is given on; what others have stays."""
    setting = warehouse
    tables = {name: setting.table(name, FACTS) for name in EXCHANGES}
    publisher = setting.publisher()
    publisher.create([*tables.values()], partitions=1)
    first = [r for table in tables.values() for n, s in enumerate("abcdefg", 1) for r in fact(table, n, 10 + n, s)]
    publisher.stand(Phase.STREAM, 50, [*tables.values()], first)
    setting.apply()
    taken, changes = list[Record](), {1: "b", 2: "a", 3: "d", 4: "e", 5: "c", 9: "f"}
    for name, (refused, *statements) in EXCHANGES.items():
        postgres18.execute(*map(str, statements))
        own = {n: fact(tables[name], n, 60, status) for n, status in changes.items()}
        own[9] = [*tables[name].event("d", {"id": 6}, position(60)), *own[9]]
        own[8] = fact(tables[name], 8, 61, "bad" if name == "refusing" else "h")
        own[7] = fact(tables[name], 7, 62, "f too")
        publisher.publish([r for records in own.values() for r in records])
        taken += [r for n, records in own.items() if n not in refused for r in records]
    publisher.stand(Phase.STREAM, 70, [*tables.values()])
    setting.apply()
    found = {name: set[int]() for name in EXCHANGES}
    for entry in read_entries(setting.config()).values():
        found[entry.table.removeprefix("public.")].add(json.loads(entry.key or "")["id"])
    assert found == {name: refused for name, (refused, *_) in EXCHANGES.items()}
    for table in tables.values():
        assert setting.contents(table) == setting.folded(table, [*first, *taken])
    for name in ("of_taken", "of_cascading"):
        assert postgres18.rows(f"SELECT id FROM {name} ORDER BY 1") == [(1,), (2,)]
    assert postgres18.rows("SELECT DISTINCT note FROM theirs") == [("a note",)]
    assert postgres18.rows("SELECT id FROM of_told") == [(6,)]


def job_file(setting: Setting, url: str, **more: Any) -> Path:
    file = setting.folder / "apply.yaml"
    job = {
        "name": "law",
        "source": {"bootstrap_servers": setting.bootstrap, "topic_prefix": setting.prefix},
        "stores": {"copy": {"type": "postgres", "url": url}},
        "tables": {"public.*": {"stores": ["copy"]}},
        "checkpoint": str(setting.folder / "checkpoints"),
        **more,
    }
    file.write_text(json.dumps(job))
    return file


def run(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(cdc, [str(word) for word in words], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return int(done.return_value or 0), done.stdout, done.stderr


def test_tables_that_cannot_go_on_are_set_aside(warehouse: Setting, postgres18: Database) -> None:
    """Each with its reason; the others go on; it goes on where it was when it can, without all being read again."""
    setting, publisher = warehouse, warehouse.publisher()
    names = ("dropped", "fine", "narrow", "renamed", "retyped", "shortened", "viewed")
    tables = {name: setting.table(name) for name in names}
    publisher.create(tables.values(), partitions=2)
    records = {
        name: [r for n in range(5) for r in of.event("c", order(n), position(10 + n))] for name, of in tables.items()
    }
    publisher.stand(Phase.STREAM, 20, tables.values(), [r for of in records.values() for r in of])
    setting.apply()
    first = setting.marks(*tables.values())
    postgres18.execute(
        "ALTER TABLE renamed RENAME TO elsewhere",
        "ALTER TABLE retyped ALTER COLUMN status TYPE integer USING 7",
        "DROP TABLE dropped",
        "ALTER TABLE shortened RENAME COLUMN status TO state",
        "CREATE VIEW of_others AS SELECT id, status FROM viewed",
        "CREATE VIEW totals AS SELECT id, total FROM viewed",
    )
    again = {name: of.event("u", order(1, "again"), position(30)) for name, of in tables.items()}
    for name, of in again.items():
        records[name] += of
    publisher.stand(Phase.STREAM, 40, tables.values(), [r for of in again.values() for r in of])
    file = job_file(setting, postgres18.url)
    code, out, err = run("apply", file, "--once", "--json")
    aside = json.loads(out)["aside"]
    assert (code, set(aside)) == (1, {"public.retyped", "public.shortened"})
    assert "has no column status any more" in aside["public.shortened"]["copy"]
    assert "WARNING law: public.retyped in copy is set aside" in err
    for name in ("dropped", "fine", "narrow", "renamed", "viewed"):  # a lost table is made again
        assert setting.contents(tables[name]) == setting.folded(tables[name], records[name]), name
    status = json.loads(run("status", file, "--json")[1])["stores"]["copy"][setting.prefix]
    assert set(status["aside"]) == {"public.retyped", "public.shortened"}
    (done,) = run_rebuild(setting.config(), table="public.shortened")
    assert (done.differences.different, done.differences.only_new) == (5, 0), "the live copy was empty in that column"
    assert "it is integer and would have to be text" in status["aside"]["public.retyped"]["reason"]
    assert "set aside: public.retyped: since " in run("status", file)[1]
    marks = setting.marks(tables["retyped"], tables["fine"])
    assert marks[0].ends == first[4].ends
    assert marks[1].complete.position == position(40, 0)

    # while the job runs: a column changes its type at the source, and the other table can go on again
    widened = setting.table("viewed", {**ORDERS, "total": {"kind": "decimal", "precision": 12, "scale": 2}}, version=2)
    wider = setting.table("narrow", {**ORDERS, "total": {"kind": "decimal", "precision": 10, "scale": 4}}, version=2)
    with setting.running("checkpoints") as job:
        until(lambda: job.said("following"))
        publisher.versions([wider, widened])
        changed = {**tables, "narrow": wider, "viewed": widened}
        more = {name: of.event("u", order(2, "later"), position(50)) for name, of in changed.items()}
        for name, of in more.items():
            records[name] += of
        publisher.stand(Phase.STREAM, 60, tables.values(), [r for of in more.values() for r in of])
        until(lambda: setting.marks(tables["fine"])[0].complete.position == position(60, 0))
        assert setting.contents(tables["fine"]) == setting.folded(tables["fine"], records["fine"])
        until(lambda: job.said("warning: public.narrow in copy is set aside"))
        postgres18.execute("ALTER TABLE retyped ALTER COLUMN status TYPE text USING 'new'")
        until(lambda: setting.marks(tables["retyped"])[0].complete.position == position(60, 0))
        until(lambda: job.said("warning: public.viewed in copy is set aside"))
        said = next(line for line in job.lines if "public.viewed in copy is set aside" in line)
        assert said.endswith("columns of its copy keeps them from being widened: public.totals")
        postgres18.execute("DROP VIEW totals")
        until(lambda: setting.marks(tables["viewed"])[0].complete.position == position(60, 0))
        assert job.failure is None
    for name in set(names) - {"narrow"}:
        assert setting.contents(tables[name]) == setting.folded(tables[name], records[name]), name
    code, out, _ = run("apply", file, "--once", "--json")
    assert (code, set(json.loads(out)["aside"])) == (1, {"public.narrow"})
    assert {of["copy"]["events"] for of in json.loads(out)["tables"].values()} == {0}, "nothing is read again"
    stores = {"stores": ["copy"]}
    narrow = {**stores, "types": {"total": "string"}, "target": "narrow_2"}
    assert (
        run("apply", job_file(setting, postgres18.url, tables={"public.narrow": narrow, "public.*": stores}), "--once")[
            0
        ]
        == 0
    )
    assert postgres18.rows("SELECT id, status, total FROM narrow_2 ORDER BY id") == [
        *((n, {1: "again", 2: "later"}.get(n, "new"), f"{n}.50") for n in range(5)),
    ]
    assert len(postgres18.rows("SELECT id FROM narrow")) == 5, "it stays"
    assert json.loads(run("status", file, "--json")[1])["stores"]["copy"][setting.prefix]["aside"] == {}


def test_a_start_goes_on_without_tables_that_the_source_has_changed(warehouse: Setting, postgres18: Database) -> None:
    """What fitted the table before and does not now, and a topic that is gone, stop no other, in no command.

    What never fitted is wrong in the file, and nothing is begun.
    """
    setting, publisher = warehouse, warehouse.publisher()
    tables = {name: setting.table(name) for name in ("clashes", "fine", "gone")}
    stores = {"stores": ["copy"]}
    shapes = {
        "public.clashes": {**stores, "rename": {"status": "state"}},
        "public.*": stores,
    }
    publisher.create(tables.values(), partitions=1)
    records = {name: of.event("c", order(1), position(10)) for name, of in tables.items()}
    broken = [r for name in ("clashes", "fine") for r in fact(tables[name], 3, 11, total="12345678901234.5")]
    publisher.stand(Phase.STREAM, 20, tables.values(), [*(r for of in records.values() for r in of), *broken])
    file = job_file(setting, postgres18.url, tables=shapes)
    assert run("apply", file, "--once")[0] == 0
    publisher.versions([setting.table("clashes", {**ORDERS, "state": {"kind": "string"}}, version=2)])
    publisher.stand(Phase.STREAM, 40, tables.values(), tables["fine"].event("u", order(1, "x"), position(30)))
    admin = AdminClient({"bootstrap.servers": setting.bootstrap})
    for future in admin.delete_topics([tables["gone"].topic]).values():
        future.result(30)
    left = {"public.clashes", "public.gone"}
    code, out, _ = run("apply", file, "--plan", "--json")
    plan = {copy["table"]: copy for copy in json.loads(out)["copies"]}
    assert (code, {name for name, copy in plan.items() if copy["action"] == "refused"}) == (1, left)
    for _ in ("and again",) * 2:
        code, out, _ = run("apply", file, "--once", "--json")
        aside = json.loads(out)["aside"]
        assert (code, set(aside)) == (1, left)
        assert postgres18.rows("SELECT id, status FROM fine") == [(1, "x")]
    assert "state in the copy: the source’s table has changed since version 1" in aside["public.clashes"]["copy"]
    assert f"its topic {tables['gone'].topic} does not exist" in aside["public.gone"]["copy"]
    status = json.loads(run("status", file, "--json")[1])["stores"]["copy"][setting.prefix]
    assert set(status["aside"]) == left
    assert run("rebuild", file, "--table", "public.fine")[0] == 0
    with pytest.raises(
        OperatorError, match=r"some copies are not rebuilt: .*Rebuilt are: public\.fine in copy"
    ) as caught:
        run("rebuild", file)
    assert all(name in caught.value.message for name in left)
    with pytest.raises(OperatorError, match=r"would both be state"):
        run("rebuild", file, "--table", "public.clashes")
    done = {one.entry.table: one.outcome for one in run_retry(load_apply(file))}
    assert done == {"public.clashes": "left", "public.fine": "left"}
    shapes["public.fine"] = {**stores, "where": "lenght(status) > 1"}
    with pytest.raises(ConfigError, match=r"tables\.public\.fine\.where"):
        run("apply", job_file(setting, postgres18.url, tables=shapes), "--once")


@pytest.mark.full  # tables that cannot go on, above
def test_a_copy_without_its_primary_key_is_rebuilt(warehouse: Setting, postgres18: Database) -> None:
    """Dropped, deferrable, of other columns: nothing could be written, and a copy made like it would be no better."""
    setting, publisher = warehouse, warehouse.publisher()
    keys = {
        "dropped": "", "deferred": ", ADD PRIMARY KEY (id) DEFERRABLE", "wider": ", ADD PRIMARY KEY (id, status)",
        "unique": ", ADD UNIQUE (id)", "fine": None,
    }  # fmt: skip
    tables = {name: setting.table(name) for name in keys}
    publisher.create(tables.values(), partitions=1)
    records = {name: of.event("c", order(1), position(10)) for name, of in tables.items()}
    publisher.stand(Phase.STREAM, 20, tables.values(), [r for of in records.values() for r in of])
    setting.apply()
    for name, instead in keys.items():
        key = f"SELECT conname FROM pg_constraint WHERE conrelid = 'public.{name}'::regclass AND contype = 'p'"
        ((named,),) = postgres18.rows(key)
        if instead is not None:
            postgres18.execute(f"ALTER TABLE public.{name} DROP CONSTRAINT {named}{instead}")
    for name, of in tables.items():
        records[name] += of.event("u", order(1, "x"), position(30))
    publisher.stand(Phase.STREAM, 40, tables.values(), [r for of in records.values() for r in of[1:]])
    aside = setting.apply().aside
    assert set(aside) == {"public.dropped", "public.deferred", "public.wider"}
    assert all("has no primary key (id) any more" in why for of in aside.values() for why in of.values())
    run_rebuild(setting.config())
    assert setting.apply().aside == {}
    for name, of in tables.items():
        assert setting.contents(of) == setting.folded(of, records[name]), name


def test_a_mark_that_is_damaged_is_of_one_copy(
    warehouse: Setting, postgres18: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """By a hand, or a disk: no command ends for it; its topic is read again for it alone, and the others go on."""
    setting, publisher = warehouse, warehouse.publisher()
    table, fine = setting.table(), setting.table("fine")
    publisher.create([table, fine], partitions=1)
    records = [r for of in (table, fine) for r in of.event("c", order(1), position(10))]
    publisher.stand(Phase.STREAM, 20, [table, fine], records)
    file = job_file(setting, postgres18.url)
    assert run("apply", file, "--once")[0] == 0
    postgres18.execute("""UPDATE cdc_apply.copies SET mark = '{"ends": ' WHERE name = 'orders'""")
    more = [r for of in (table, fine) for r in of.event("u", order(1, "x"), position(30))]
    publisher.stand(Phase.STREAM, 40, [table, fine], more)
    assert run("status", file)[0] == 0
    assert "PostgreSQL table public.orders: its mark is damaged" in caplog.text
    assert "older than the checkpoint" in run("apply", file, "--plan")[1]
    code, out, err = run("apply", file, "--once", "--json")
    assert "WARNING law: public.orders in copy is set aside" in err
    events = {of: counts["copy"]["events"] for of, counts in json.loads(out)["tables"].items()}
    assert (code, events["public.fine"]) == (0, 1), "the other is not read again"
    for of in (table, fine):
        assert setting.contents(of) == setting.folded(of, [*records, *more])


QUESTIONS = (
    (job_module, "without_topics"), (job_module, "read_set_aside"), (start, "require_deletes"),
    (FollowedTopics, "begin"), (compacted_deletes, "ends_by_topic"),
)  # fmt: skip


def _fail_once(
    monkeypatch: pytest.MonkeyPatch, where: Any, name: str, away: set[str], begun: Callable[[], bool]
) -> None:
    """Have Kafka give no answer to a question, the first time after something has begun."""
    real = getattr(where, name)

    def asked(*args: Any, **more: Any) -> Any:
        if begun() and name not in away:
            away.add(name)
            source = ApplySource(bootstrap_servers="nowhere:1", topic_prefix="p")
            raise unreachable(source, KafkaException(KafkaError(KafkaError._TRANSPORT)))
        return real(*args, **more)

    monkeypatch.setattr(where, name, asked)


def test_tables_that_come_while_the_job_runs_are_taken_up(warehouse: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read again for them; one that the file does not fit is set aside, told once, and stops no other."""
    monkeypatch.setattr(new_tables, "LOOK_EVERY_S", 0.2)
    setting, publisher = warehouse, warehouse.publisher()
    table, later, last = (setting.table(name) for name in ("orders", "later", "last"))
    named, unfit = setting.table("named"), setting.table("namely", {"id": {"kind": "int64"}})  # without its column
    publisher.create([table, named], partitions=1)
    records = [*table.event("c", order(1), position(10)), *named.event("c", order(1), position(10))]
    publisher.stand(Phase.STREAM, 20, [table, named], records)
    first, stores = len(records), {"stores": ["copy"]}
    named_only, others = ({"rename": {"status": "state"}, "stores": [of]} for of in ("copy", "alone"))
    shapes = {"public.named": named_only, "public.name*": others, "public.*": stores}
    url, alone = setting.config().stores["copy"].url or "", {"type": "tantivy", "path": str(setting.folder / "alone")}
    # no round opens the second store: no table uses it but the one that is refused
    file = job_file(setting, url, tables=shapes, stores={"copy": {"type": "postgres", "url": url}, "alone": alone})
    stop, lines, ended = threading.Event(), list[str](), list[ApplySummary | BaseException]()
    admin = AdminClient({"bootstrap.servers": setting.bootstrap})

    def reached(commit: int, *tables: SourceTable) -> bool:
        marks = [mark and mark.complete for mark in setting.marks(*tables)]
        return ended != [] or all(complete and complete.position == position(commit, 0) for complete in marks)

    def follow() -> None:
        try:
            ended.append(run_apply(load_apply(file), once=False, stop=stop, progress=lines.append))
        except BaseException as exc:  # noqa: BLE001 - asserted below
            ended.append(exc)

    away = set[str]()
    for where, name in QUESTIONS:
        _fail_once(monkeypatch, where, name, away, lambda: any(line.startswith("taking up ") for line in lines))

    def come(*tables: SourceTable, at: int) -> list[Record]:
        wanted = [NewTopic(of.topic, 1, 1) for of in tables]
        for future in admin.create_topics(wanted).values():
            future.result(30)
        publisher.versions(tables)
        return [r for of in tables for r in of.event("c", order(7), position(at))]

    job = threading.Thread(target=follow)
    job.start()
    try:
        until(lambda: ended != [] or any(line.startswith("batch 1") for line in lines), 240)
        records += [*table.event("u", order(1, "x"), position(30)), *come(unfit, later, at=31)]
        publisher.stand(Phase.STREAM, 40, [table, named, later, unfit], records[first:])
        both = (table, later)
        until(lambda: reached(40, *both), 120)
        records += [*later.event("u", order(7, "y"), position(50)), *come(last, at=51)]
        publisher.stand(Phase.STREAM, 60, [table, named, later, unfit, last], records[-2:])
        until(lambda: reached(60, *both, last), 120)
        assert [noted.table for noted in read_set_aside(load_apply(file)).values()] == ["public.namely"]
    finally:
        stop.set()
        job.join(180)
    (done,) = ended
    assert isinstance(done, ApplySummary), done
    assert away == {name for _, name in QUESTIONS}, "Kafka was away at each question between the two queries"
    events = {of: counts["copy"].events for of, counts in done.tables.items()}
    once = {"public.orders": 2, "public.later": 2, "public.last": 1, "public.named": 1}
    assert events == once, "nothing is read again"
    assert len([line for line in lines if "public.namely in alone is set aside" in line]) == 1
    assert len([line for line in lines if line.startswith("taking up ")]) == 2
    for of in (table, later, last):
        assert setting.contents(of) == setting.folded(of, records), of.name


def test_what_a_pattern_brings_stops_no_other_table(warehouse: Setting, postgres18: Database) -> None:
    """Neither a start nor any other command: a column that is not there, another's target, an expression."""
    setting, publisher = warehouse, warehouse.publisher()
    names = ("fine", "twin", "twin_2", "unlike", "unread")
    shapes = {"unlike": {"id": {"kind": "int64"}}}
    tables = {name: setting.table(name, shapes.get(name, ORDERS)) for name in names}
    publisher.create(tables.values(), partitions=1)
    records = [r for of in tables.values() for r in of.event("c", {**order(1), "_": 0}, position(10))]
    publisher.stand(Phase.STREAM, 20, tables.values(), records)
    stores = {"stores": ["copy"]}
    patterns = {
        "public.twin*": {**stores, "target": "twins"},
        "public.unl*": {**stores, "rename": {"status": "state"}},
        "public.unr*": {**stores, "where": "lenght(status) > 1"},
        "public.*": stores,
    }
    file, left = job_file(setting, postgres18.url, tables=patterns), {"public.twin_2", "public.unlike", "public.unread"}
    code, out, _ = run("apply", file, "--plan", "--json")
    plan = {copy["table"]: copy["action"] for copy in json.loads(out)["copies"]}
    assert (code, plan) == (1, {f"public.{name}": "make" for name in ("fine", "twin")} | dict.fromkeys(left, "refused"))
    fitting = left - {"public.unread"}  # Spark alone says whether its expression fits
    status = json.loads(run("status", file, "--json")[1])["stores"]["copy"][setting.prefix]
    assert set(status["refused"]) == fitting, "before any start has said so"
    assert "both would be public.twins" in status["refused"]["public.twin_2"]["reason"]
    assert "refused: public.unlike: tables.public.unlike.rename.status" in run("status", file)[1]
    for at in (30, 50):
        code, out, err = run("apply", file, "--once", "--json")
        aside = {table: of["copy"] for table, of in json.loads(out)["aside"].items()}
        assert (code, set(aside)) == (1, left)
        assert "both would be public.twins in store copy" in aside["public.twin_2"]
        assert "tables.public.unlike.rename.status: the table has no such column" in aside["public.unlike"]
        assert "tables.public.unread.where" in aside["public.unread"]
        status = json.loads(run("status", file, "--json")[1])["stores"]["copy"][setting.prefix]
        assert (set(status["aside"]), status["refused"]) == (left, {})
        for name, copied in (("fine", "fine"), ("twin", "twins")):
            rows = [(row["id"], row["status"]) for row in setting.folded(tables[name], records).values()]
            assert postgres18.rows(f"SELECT id, status FROM {copied}") == rows
        events = {of: counts["copy"]["events"] for of, counts in json.loads(out)["tables"].items()}
        assert events == {"public.fine": 1, "public.twin": 1}, "nothing is read again"
        assert err.count("is set aside, the others go on") == (3 if at == 30 else 0), "it is told once"
        more = [
            r for name in ("fine", "twin", "twin_2") for r in tables[name].event("u", order(1, f"{at}"), position(at))
        ]
        publisher.stand(Phase.STREAM, at + 10, tables.values(), more)
        records += more
    with pytest.raises(
        OperatorError, match=r"some copies are not rebuilt: .*Rebuilt are: public\.fine in copy, public"
    ):
        run("rebuild", file)
    also = [tables["twin"], tables["unlike"]]
    published = cast("PublishedTables", Held(tables["fine"], [order(1, "50")], also=also))
    standing = State(connector=setting.prefix, identity={}, phase=Phase.STREAM, epoch=1, commit=60)
    assert run("apply", file, "--once")[0] == 1
    postgres18.execute("ALTER TABLE twins RENAME TO away")
    fine, twin, unlike = verify(load_apply(file), published, lambda: standing)
    assert (fine.table, fine.agrees, fine.rows) == ("public.fine", True, 1)
    assert (twin.table, twin.agrees, twin.not_compared) == (
        "public.twin",
        False,
        "PostgreSQL table public.twins cannot be read",
    )
    assert (unlike.table, unlike.agrees) == ("public.unlike", False)
    assert [
        line for line in report([unlike.as_json()]) if "public.unlike in copy was not compared: tables.public" in line
    ]
    for name in left:
        named = {name: next(of for pattern, of in patterns.items() if fnmatch(name, pattern)), **patterns}
        named |= {"public.twin": patterns["public.twin*"]}
        with pytest.raises(ConfigError, match=name.replace(".", "[.]")):
            run("apply", job_file(setting, postgres18.url, tables=named), "--once")


@pytest.fixture
def search(apply_spark: SparkSession, kafka: str, opensearch: str, tmp_path: Path) -> Setting:
    config = StoreConfig(type="opensearch", url=opensearch, options={"shards": 1, "replicas": 0})
    return Setting(apply_spark, kafka, tmp_path, lambda _: config)


HOSTILE = (
    *("_id", "_source", "_routing", "_seq_no", "_own", "a", "a.b", "a.b.c", ".x", "x.", "a..b", " ", "  ", "\u00a0"),
    *("a*", "*", "?", "%", "%2E", "A", "ä", "type", "properties", "a/b", "a,b", '"', "a b "),
)


def template_for(prefix: str) -> dict[str, Any]:
    """A template of a cluster that says what all its indexes are like."""
    mappings = {"dynamic": "strict", "_source": {"enabled": False}, "_routing": {"required": True}}
    pipelines = {"default_pipeline": "nowhere", "final_pipeline": "nowhere"}
    settings = {"index": {**pipelines, "replication.type": "SEGMENT"}}
    return {"index_patterns": [f"{prefix}*"], "template": {"settings": settings, "mappings": mappings}}


def test_names_that_opensearch_takes_for_something_else(search: Setting, opensearch: str) -> None:
    """Each column has a field of its own, which is found; many columns may come later."""
    setting, publisher = search, search.publisher()
    table = setting.table("hostile", {"id": {"kind": "int64"}, **{name: {"kind": "string"} for name in HOSTILE}})
    taken = setting.table("taken")
    publisher.create([table, taken])
    row = {"id": 1, **{name: f"value{number}" for number, name in enumerate(HOSTILE)}}
    records = table.event("c", row, position(10))
    publisher.publish(records)
    client, alias = OpenSearch(opensearch), f"{setting.prefix}.public.hostile"
    client.indices.put_index_template(name=setting.prefix, body=template_for(setting.prefix))
    client.indices.create(index=f"{setting.prefix}.public.taken")
    assert setting.apply().tables[table.qualified]["copy"].quarantined == 0
    assert setting.contents(table) == setting.folded(table, records)
    client.indices.refresh(index=alias)
    for number, name in enumerate(HOSTILE):
        query = {"match": {field_name(name): f"value{number}"}}
        assert client.count(index=alias, body={"query": query})["count"] == 1, name
    wide = {f"c{number}": {"kind": "string"} for number in range(650)}
    wider = setting.table("hostile", {**table.columns, **wide}, version=2)
    publisher.versions([wider])
    more = wider.event("c", {**row, "id": 2, **dict.fromkeys(wide, "x")}, position(20))
    publisher.publish(more)
    setting.apply()
    assert setting.contents(wider) == setting.folded(wider, [*records, *more])

    # an index of a stranger that has the alias's name, and one under the alias
    told = {of.table: of.reason for of in read_set_aside(setting.config()).values()}
    assert list(told) == [taken.qualified]
    assert "is there already and was not made by this toolkit" in told[taken.qualified]
    client.indices.create(index=f"{setting.prefix}-stranger", body={"aliases": {alias: {}}})
    publisher.publish(wider.event("d", {"id": 1}, position(30)))
    with pytest.raises(OperatorError, match=f"alias {alias} names several indexes"):
        setting.apply()


def test_documents_that_opensearch_refuses_and_blocks_that_pass(
    search: Setting, opensearch: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An immense term blocks its own key; a full disk and a closed table delay nothing but what they are of.

    An index that another hand deletes, or makes again with the same mapping, is filled again; pipelines change none.
    """
    setting, publisher = search, search.publisher()
    table, other, deleted, remade = (setting.table(name) for name in ("facts", "other", "deleted", "remade"))
    lost, every = (deleted, remade), (table, other, deleted, remade)
    publisher.create(every, partitions=1)
    records = [r for n in range(5) for of in every for r in of.event("c", order(n), position(10 + n))]
    publisher.stand(Phase.STREAM, 20, every, records)
    setting.apply()
    client, alias = OpenSearch(opensearch), f"{setting.prefix}.public.facts"
    own = {"keyword": {"type": "keyword", "ignore_above": 256}, "whole": {"type": "keyword"}}
    client.indices.put_mapping(index=alias, body={"properties": {"status": {"type": "text", "fields": own}}})
    immense, after = (
        table.event("u", order(1, "x" * 40_000), position(21)),
        table.event("u", order(2, "ok"), position(22)),
    )
    publisher.stand(Phase.STREAM, 30, every, [*immense, *after])
    setting.apply()
    assert reasons(setting) == {'{"id":1}': "OpenSearch does not take it: illegal_argument_exception"}
    records += after
    assert setting.contents(table) == setting.folded(table, records)

    with setting.running("checkpoints") as job:
        until(lambda: job.said("following"))
        client.indices.put_settings(index=alias, body={"index.blocks.read_only_allow_delete": True})
        later = [r for of in (table, other) for r in of.event("u", order(3, "later"), position(40))]
        publisher.stand(Phase.STREAM, 50, every, later)
        until(lambda: "waiting, disk usage exceeded flood-stage watermark" in caplog.text)
        client.indices.put_settings(index=alias, body={"index.blocks.read_only_allow_delete": None})
        until(lambda: all(mark.complete.position == position(50, 0) for mark in setting.marks(table, other)))
        assert job.failure is None
        client.indices.close(index=alias)
        theirs = {"index.default_pipeline": "theirs", "index.search.default_pipeline": "theirs"}
        client.indices.put_settings(index=f"{setting.prefix}.public.other", body=theirs)
        for of in lost:
            named = f"{setting.prefix}.public.{of.name}"
            ((index, about),) = client.indices.get(index=named).items()
            client.indices.delete(index=index)
            if of is remade:
                client.indices.create(index=index, body={"mappings": about["mappings"], "aliases": {named: {}}})
        last = [r for of in every for r in of.event("u", order(4, "last"), position(60))]
        publisher.stand(Phase.STREAM, 70, every, last)
        until(lambda: job.said("warning: public.facts in copy is set aside"))
        until(lambda: setting.marks(other)[0].complete.position == position(70, 0))
        assert setting.contents(other) == setting.folded(other, [*records, *later, *last])
        client.indices.open(index=alias)
        until(lambda: all(_is_complete(setting, of, position(70, 0)) for of in every))
        assert any("remade was made again or restored by another hand" in line for line in job.lines)
        assert job.failure is None
    for of in (table, *lost):
        assert setting.contents(of) == setting.folded(of, [*records, *later, *last]), of.name
    client.indices.put_settings(index=alias, body={"index.final_pipeline": "theirs"})
    store = open_store(setting.config().stores["copy"], name="copy", prefix=setting.prefix, spark=None)
    with pytest.raises(OperatorError, match="has the final_pipeline theirs, which may change or drop documents"):
        store.set_mark(setting.target(table), setting.marks(table)[0])
    store.close()


@pytest.mark.full  # tables that cannot go on, above
@pytest.mark.parametrize("kind", some_each_push(["iceberg", "delta", "tantivy"], "iceberg"))
def test_a_lake_table_that_is_put_back_while_the_job_runs(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, kind: str
) -> None:
    """By a rollback, a RESTORE or a backup: the next mark would say that it has what it has lost. It is read again."""
    setting, publisher, table, records = _applied(apply_spark, kafka, tmp_path, kind)
    put_back = _put_back(setting, table, kind)
    with setting.running("checkpoints") as job:
        for commit, news in ((30, True), (50, False), (70, True)):
            if news:
                more = table.event("u", order(1, f"at {commit}"), position(commit))
                more += table.event("d", order(0), position(commit, 9)) if commit == 30 else []
                records += more
            publisher.stand(Phase.STREAM, commit + 5, [table], more if news else [])
            until(partial(_is_complete, setting, table, position(commit + 5, 0)), within_s=150)
            if commit == 30:
                put_back()
        assert job.failure is None
    assert setting.contents(table) == setting.folded(table, records)
    assert any("was put back to an earlier state while the job runs" in line for line in job.lines)
    assert any("goes on with the others" in line for line in job.lines)


def _applied(
    spark: SparkSession, kafka: str, folder: Path, kind: str, url: str | None = None
) -> tuple[Setting, Publisher, SourceTable, list[Record]]:
    """Return a setting with a copy of three rows, and the records of its topic."""
    setting = Setting(
        spark, kafka, folder, lambda at: StoreConfig(type=kind, path=None if url else str(at / kind), url=url)
    )
    table, publisher = setting.table("orders"), setting.publisher()
    publisher.create([table], partitions=1)
    records = [r for n in range(3) for r in table.event("c", order(n), position(10 + n))]
    publisher.stand(Phase.STREAM, 20, [table], records)
    setting.apply()
    return setting, publisher, table, records


def _is_complete(setting: Setting, table: SourceTable, at: str) -> bool:
    (mark,) = setting.marks(table)
    return mark is not None and mark.complete is not None and bool(mark.complete.position == at)


def _put_back(setting: Setting, table: SourceTable, kind: str) -> Callable[[], None]:
    """Return what puts a table back to the state that it has now."""
    if kind == "tantivy":
        return setting.kept(table)
    store: Any = open_store(setting.config().stores["copy"], name="copy", prefix="", spark=setting.spark.newSession())
    made = setting.target(table)
    if kind == "iceberg":
        then = store._tables.loaded(made).currentSnapshot().snapshotId()
        return lambda: store._tables.loaded(made).manageSnapshots().rollbackTo(then).commit()
    version = store._log(made).snapshot().version()
    return lambda: store._spark.sql(f"RESTORE TABLE {store.table_name(made)} TO VERSION AS OF {version}")


@pytest.mark.parametrize("kind", ["iceberg", pytest.param("delta", marks=pytest.mark.full)])
def test_a_lake_table_whose_newest_batch_is_undone_before_its_mark(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of many tables takes its time between the two: the mark would say that what was undone is there."""
    setting, publisher, table, records = _applied(apply_spark, kafka, tmp_path, kind)
    more = [*table.event("u", order(1, "x"), position(30)), *table.event("d", order(0), position(31))]
    publisher.stand(Phase.STREAM, 40, [table], more)
    store: Any = {"iceberg": IcebergStore, "delta": DeltaStore}[kind]
    real, undo = store.apply, _put_back(setting, table, kind)

    def apply(self: Any, batch: Batch) -> Applied:
        applied: Applied = real(self, batch)
        undo()
        return applied

    with monkeypatch.context() as patched:
        patched.setattr(store, "apply", apply)
        with pytest.raises(AlteredError, match="was put back to an earlier state while the job runs"):
            setting.apply()
    setting.apply()
    assert setting.contents(table) == setting.folded(table, [*records, *more])


_WIDENED = {
    "iceberg": (
        "ALTER TABLE {} ALTER COLUMN id TYPE bigint",
        "CALL copy.system.rewrite_data_files(table => 'public.other', options => map('rewrite-all', 'true'))",
        "CALL copy.system.expire_snapshots(table => 'public.other', older_than => current_timestamp())",
    ),
    "delta": (
        "ALTER TABLE {} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')",
        "ALTER TABLE {} ALTER COLUMN id TYPE bigint",
    ),
}
"""What other engines do to a table: its key becomes wider, and the snapshots go that have its applied position."""


@pytest.mark.parametrize("kind", ["iceberg", pytest.param("delta", marks=pytest.mark.full)])
def test_a_lake_table_that_has_lost_a_column(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renamed by another hand: no empty column takes its place, not even by a rebuild that is killed.

    Nor does another one that has its name.
    """
    setting = Setting(apply_spark, kafka, tmp_path, lambda folder: StoreConfig(type=kind, path=str(folder / kind)))
    columns = {**ORDERS, "id": {"kind": "int32"}}
    table, other, publisher = setting.table("orders"), setting.table("other", columns), setting.publisher()
    fine, remade = setting.table("fine"), setting.table("remade")
    every = [table, other, fine, remade]
    publisher.create(every, partitions=1)
    records = {of.name: [r for n in range(3) for r in of.event("c", order(n), position(10 + n))] for of in every}
    publisher.stand(Phase.STREAM, 20, every, [r for of in records.values() for r in of])
    setting.apply()
    store: Any = open_store(setting.config().stores["copy"], name="copy", prefix="", spark=apply_spark.newSession())
    spark = store._tables.spark if kind == "iceberg" else store._spark
    name, another = (store.table_name(setting.target(of)) for of in (table, remade))
    for mapped in (name, another) if kind == "delta" else ():
        spark.sql(f"ALTER TABLE {mapped} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    spark.sql(f"ALTER TABLE {name} RENAME COLUMN status TO state")
    spark.sql(f"ALTER TABLE {another} DROP COLUMN status")
    spark.sql(f"ALTER TABLE {another} ADD COLUMNS (status string)")
    for statement in _WIDENED[kind]:
        spark.sql(statement.format(store.table_name(setting.target(other))))
    wider = setting.table("other", {**columns, "note": {"kind": "string"}}, version=2)
    publisher.versions([wider])
    more = {
        "orders": table.event("u", order(1, "later"), position(30)),
        "other": wider.event("u", {**order(1, "later"), "note": "new"}, position(30)),
    }
    more["remade"] = remade.event("u", order(1, "later"), position(30))
    publisher.stand(Phase.STREAM, 40, every, [r for of in more.values() for r in of])
    records = {of: [*seen, *more.get(of, [])] for of, seen in records.items()}
    said = setting.apply().aside
    assert list(said) == ["public.orders", "public.remade"], "a column that is new is added"
    assert "has another column status than it had" in said["public.remade"]["copy"]
    assert "has no column status any more" in said["public.orders"]["copy"]
    assert setting.contents(wider) == setting.folded(wider, records["other"])
    assert setting.rows(wider) == 3, "none is there twice"

    def killed(*_: object) -> None:
        raise OperatorError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(rebuild, "compare", killed)
        with pytest.raises(OperatorError, match="killed"):
            rebuild.run_rebuild(setting.config(), table="public.orders")
    said = setting.apply().aside
    assert "has columns without the values of its rows" in said["public.orders"]["copy"]
    for of in (table, remade):
        rebuild.run_rebuild(setting.config(), table=of.qualified)
    last = [r for of in (table, remade) for r in of.event("u", order(2, "last"), position(50))]
    publisher.stand(Phase.STREAM, 60, every, last)
    assert setting.apply().aside == {}
    for of in (table, remade):
        assert setting.contents(of) == setting.folded(of, [*records[of.name], *last])
