"""`source.columns` and `source.where`: what is refused, what a changed table leads to, what others get to see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from cdc.capture.pipeline import Pipeline, Settings
from cdc.capture.snapshots.published_rows import PublishedTables, open_published
from cdc.config import registry
from cdc.config.config import ConnectorConfig, load_connector
from cdc.config.kafka_config import KafkaConfig
from cdc.config.published.column_rules import ColumnRules, HashRule
from cdc.config.source_config import SourceConfig
from cdc.encode.schema_versions import SchemaVersions
from cdc.model.change import Column, Kind, Table
from cdc.model.errors import CdcError, ConfigError, LeftOutError, OperatorError
from cdc.rules.capture_rules import CaptureRules
from cdc.rules.changed_values import without_labels
from cdc.rules.other_names import Another, refuse_other_names
from cdc.testing import MemoryKafka, MemoryLog, MemorySink, MemorySnapshotter, MemorySource, insert
from tests.text_tables import text_column, text_table

USERS = text_table("users", ["id", "name", "password"])
HIDDEN = ColumnRules(exclude=("password",))


class Bench:
    def __init__(self) -> None:
        self.log, self.kafka = MemoryLog(), MemoryKafka()

    def run(
        self,
        table: Table,
        columns: dict[str, ColumnRules],
        where: dict[str, str] | None = None,
        more: tuple[Table, ...] = (),
        *,
        appends: bool = False,
    ) -> None:
        rules = CaptureRules(columns, where or {}, appends=appends)
        Pipeline(
            Settings(connector="c", prefix="p", rules=rules, logs=frozenset(["dead-letter"])),
            open_source=lambda: MemorySource(self.log, [table, *more]),
            open_snapshotter=lambda: MemorySnapshotter(self.log),
            sink=MemorySink(self.kafka, "c", "p"),
        ).run(until_caught_up=True)

    def values(self, topic: str) -> list[dict[str, object]]:
        return [orjson.loads(r.value) for r in self.kafka.committed(topic) if r.value is not None]


def test_the_file(tmp_path: Path) -> None:
    """As it is written, with the salt from a file that no repr shows."""
    (tmp_path / "salt").write_text("pepper\n")
    file = tmp_path / "c.yaml"
    file.write_text(
        f"""
name: c
source:
  type: postgres
  url: postgresql://h/d
  tables: [public.users, public.orders]
  columns:
    public.users:
      exclude: [password]
      mask: [email]
      hash: {{columns: [phone], salt: "${{file:{tmp_path}/salt}}"}}
      truncate: {{bio: 100}}
  where:
    public.orders: "status <> 'draft'"
sink: {{bootstrap_servers: "h:1"}}
"""
    )
    config = load_connector(file)
    rules = config.source.columns["public.users"]
    assert rules.hash == HashRule(columns=("phone",), salt="pepper")
    assert rules.changed == ("email", "phone", "bio")
    assert "pepper" not in repr(config)
    assert CaptureRules.of_source(config.source).of("public.orders") is not None
    assert CaptureRules.of_source(config.source).of("public.others") is None


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (ColumnRules, "no column is named"),
        (lambda: ColumnRules(exclude=("a",), include=("b",)), "do not go together"),
        (lambda: ColumnRules(exclude=("a",), mask=("a",)), "a is named twice"),
        (lambda: ColumnRules(include=("a",), mask=("b",)), "include leaves b out"),
        (lambda: ColumnRules(truncate={"a": 0}), "truncate.a: 0 is out of range"),
        (lambda: HashRule(columns=(), salt="x"), "columns is empty"),
        (lambda: HashRule(columns=("a",), salt=""), "salt is empty"),
        (lambda: _source(columns={"s.other": HIDDEN}), "columns: “s.other” is not captured"),
        (lambda: _source(where={"s.other": "id = 1"}), "where: “s.other” is not captured"),
        (lambda: _source(where={"s.users": "id ="}), "where.s.users: this condition cannot be judged"),
    ],
)
def test_files_that_are_refused(made: object, why: str) -> None:
    """Before anything is connected."""
    with pytest.raises(ConfigError, match=why):
        made()  # type: ignore[operator]


def _source(**more: object) -> SourceConfig:
    return SourceConfig(type="postgres", url="postgresql://h/d", tables=("s.users",), **more)  # type: ignore[arg-type]


def test_rules_of_a_table_that_is_left_out_may_stay() -> None:
    """They are those of what it had, wherever that is captured again."""
    rules = {"s.other": HIDDEN, "s.old_?": HIDDEN}
    of = SourceConfig(
        type="postgres", url="postgresql://h/d", tables=("s.*", "!s.other", "!s.old_*"), columns=rules,
        where={"s.other": "id = 1", "s.wrong_*": "id = 1"},
    )  # fmt: skip
    (refused,) = CaptureRules.of_source(of).refusals([USERS], first=True)
    assert refused.message == "source.where: s.wrong_* is no captured table"
    (refused,) = CaptureRules.of_source(of).refusals([USERS], first=False)
    of = replace(of, tables=(*of.tables, (refused.hint or "").split('"')[1]))  # as the hint says
    assert not list(CaptureRules.of_source(of).refusals([USERS], first=False))


def test_a_misspelt_column_of_a_pattern_waits_for_no_table_of_a_first_start() -> None:
    """What it was to hide would be published; later, a column may be of a table that is left out for now."""
    rules = CaptureRules({"s.*": ColumnRules(mask=("emial",))}, {})
    (error,) = rules.refusals([USERS], first=True, beside=["s.other"])
    assert "has no column emial" in error.message
    assert not [*rules.refusals([USERS], first=False, beside=["s.other"])]
    (said,) = rules.waiting([USERS], ["s.other"])
    assert "has a column emial: if the name is not misspelt, it waits for s.other" in said
    assert not [*rules.waiting([USERS], ["t.other"])]
    assert not [*CaptureRules({"s.users": ColumnRules(mask=("emial",))}, {}).waiting([USERS], ["s.other"])]


def test_the_rules_of_a_table_that_cannot_be_captured_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """`cdc verify` compared no table: a run goes on without the one that was made UNLOGGED, say."""

    class Without(MemorySource):
        def left_out(self) -> Mapping[str, CdcError]:
            return {"s.other": LeftOutError("table s.other is unlogged")}

    log = MemoryLog()
    monkeypatch.setattr(registry, "source", lambda _: lambda: Without(log, [USERS]))
    monkeypatch.setattr(registry, "snapshotter", lambda _: lambda: MemorySnapshotter(log))
    of = replace(_source(columns={"s.users": HIDDEN}), tables=("s.*",))
    config = ConnectorConfig(name="c", source=of, sink=KafkaConfig(bootstrap_servers="h:1", topic_prefix="p"))
    with open_published(replace(config, source=replace(of, columns={"s.other": HIDDEN}))) as published:
        assert [*published.tables] == ["s.users"]
    with pytest.raises(OperatorError, match=r"s\.gone is no captured table"):
        open_published(replace(config, source=replace(of, columns={"s.gone": HIDDEN})))


@pytest.mark.parametrize(
    ("columns", "where", "why"),
    [
        ({"s.users": ColumnRules(mask=("id",))}, {}, "id is a column of its key"),
        ({"s.users": ColumnRules(exclude=("pasword",))}, {}, "has no column pasword"),
        ({"s.*": ColumnRules(exclude=("pasword",))}, {}, "has no column pasword"),
        ({"s.x*": HIDDEN}, {}, "s.x\\* is no captured table"),
        ({"s.users": HIDDEN, "s.*": HIDDEN}, {}, "is named by s.users and by s.\\*"),
        ({}, {"s.users": "nam = 'x'"}, "has no column nam"),
        ({}, {"s.users": "name = 'x'"}, "takes different texts for equal"),
    ],
)
def test_rules_that_do_not_fit_are_refused_before_anything_is_made(
    columns: dict[str, ColumnRules], where: dict[str, str], why: str
) -> None:
    """No topic, no hold of the log."""
    bench = Bench()
    with pytest.raises(OperatorError, match=why):
        bench.run(USERS, columns, where)
    assert not bench.kafka.topics
    assert bench.log.held_from is None


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("name = 'a b'", "name  =\n'a b'", True),
        ("name = 'a b'", "name = 'a  b'", False),
        ("name = 'a b'", "name = 'a\tb'", False),
        ("name = ' a'", "name = '  a'", False),
        ("name = 'it''s  a'", "name = 'it''s a'", False),
        ('"a b" = 1', '"a  b" = 1', False),
        ("`a b` = 1", "`a  b` = 1", False),
        ("name = '\"' AND id = 1 OR name = '\"'", "name = '\"'  AND id = 1 OR name = '\"'", True),
    ],
)
def test_a_condition_that_says_something_else_is_another_rule(before: str, after: str, same: bool) -> None:
    """Its table is read again then: rows that match it only now would never come."""
    rules = [CaptureRules({}, {"s.t": text}).of("s.t") for text in (before, after)]
    assert (rules[0] is not None and rules[1] is not None and rules[0].fingerprint == rules[1].fingerprint) is same


def test_a_renamed_column_does_not_escape() -> None:
    """It stops the connector, in the log and at the next start, until the file says what the new column is."""
    bench = Bench()
    bench.log.commit(insert(USERS, (b"1", b"a", b"SECRET")))
    bench.run(USERS, {"s.users": HIDDEN})
    renamed = text_table("users", ["id", "name", "pw"])
    bench.log.commit(insert(renamed, (b"2", b"b", b"SECRET")))
    for table in (USERS, renamed):  # as the catalog says before and after
        with pytest.raises(OperatorError, match="has no column password any more, and has pw"):
            bench.run(table, {"s.users": HIDDEN})
    bench.log.transactions.insert(-1, bench.log.transactions[-1])  # the log goes on with a row of before
    before = insert(USERS, (b"0", b"z", b"SECRET"))
    bench.log.transactions[-2] = replace(bench.log.transactions[-2], changes=(before._replace(lsn=1),))
    with pytest.raises(OperatorError, match="has no column pw any more, and has password"):
        bench.run(renamed, {"s.users": ColumnRules(exclude=("pw",))})
    bench.run(renamed, {"s.users": ColumnRules(exclude=("password", "pw"))})
    bench.log.commit(insert(renamed, (b"3", b"c", b"SECRET")))
    bench.run(renamed, {"s.users": ColumnRules(exclude=("password", "pw"))})
    assert [v["after"] for v in bench.values("p.s.users")][-1] == {"id": "3", "name": "c"}
    assert not any(b"SECRET" in (r.value or b"") for of in bench.kafka.topics.values() for r in of)


def test_a_renamed_column_whose_name_another_has_by_now_does_not_escape() -> None:
    """Where new columns are appended, one that stands before the named one is as old: it may have been that one."""
    bench = Bench()
    bench.log.commit(insert(USERS, (b"1", b"a", b"SECRET")))
    bench.run(USERS, {"s.users": HIDDEN}, appends=True)
    lent = text_table("users", ["id", "pw", "password"])
    bench.log.commit(insert(lent, (b"2", b"SECRET", b"")))
    for table in (USERS, lent):  # as the catalog says before and after
        with pytest.raises(OperatorError, match="has pw, which nobody knows, before columns of the rule"):
            bench.run(table, {"s.users": HIDDEN}, appends=True)
    bench.run(lent, {"s.users": ColumnRules(exclude=("password", "pw"))}, appends=True)
    assert [v["after"] for v in bench.values("p.s.users")][-1] == {"id": "2"}
    assert not any(b"SECRET" in (r.value or b"") for of in bench.kafka.topics.values() for r in of)


WIDE = text_table("users", ["id", "x", "y", "password"])


def _typed(name: str, type_: str) -> Column:
    return replace(text_column(name), type=type_)


@pytest.mark.parametrize("rules", [HIDDEN, ColumnRules(mask=("password",))], ids=["exclude", "mask"])
@pytest.mark.parametrize(
    ("before", "now"),
    [
        (WIDE, text_table("users", ["id", "y", "x"])),
        (text_table("users", ["id", _typed("x", "integer"), "password"]), text_table("users", ["id", "x"])),
    ],
    ids=["another place", "another type"],
)
def test_a_column_that_takes_the_name_of_a_dropped_one_does_not_escape(
    rules: ColumnRules, before: Table, now: Table
) -> None:
    """DROP x, RENAME password TO x: a name that was published is no proof of what is in it."""
    bench = Bench()
    bench.log.commit(insert(before, tuple(b"%d" % n for n in range(len(before.columns)))))
    bench.run(before, {"s.users": rules}, appends=True)
    bench.log.commit(insert(now, (b"2", b"SECRET", b"SECRET")[: len(now.columns)]))
    for table in (before, now):  # as the catalog says before and after
        with pytest.raises(OperatorError, match=r"has no column password any more, and .* has not the place"):
            bench.run(table, {"s.users": rules}, appends=True)
    assert not any(b"SECRET" in (r.value or b"") for of in bench.kafka.topics.values() for r in of)
    named = ColumnRules(exclude=("password", *(c.name for c in before.columns[1:-1])))
    bench.run(now, {"s.users": named}, appends=True)
    assert [v["after"] for v in bench.values("p.s.users")][-1] == {"id": "2"}


def test_a_named_column_may_be_dropped() -> None:
    """With others or without: what is left is what it was."""
    bench = Bench()
    bench.log.commit(insert(WIDE, (b"1", b"x", b"y", b"SECRET")))
    bench.run(WIDE, {"s.users": HIDDEN}, appends=True)
    for number, names in enumerate((["id", "x", "y"], ["id", "y"]), 2):
        table = text_table("users", names)
        bench.log.commit(insert(table, (b"%d" % number, *[b"v"] * (len(names) - 1))))
        bench.run(table, {"s.users": HIDDEN}, appends=True)
    assert bench.values("p.s.users")[-1]["after"] == {"id": "3", "y": "v"}


def test_rows_that_are_read_with_a_column_of_which_the_log_has_not_told() -> None:
    """Behind a gap, or amid the first snapshot: where a new column may stand anywhere, nothing explains it."""
    lent = text_table("users", ["id", "pw", "password"])
    lists = ColumnRules(include=("password",), mask=("password",))
    for rule, refused in (
        (ColumnRules(mask=("password",)), True),
        (ColumnRules(mask=("password",), exclude=("pw",)), False),
        (lists, False),
    ):
        bench = Bench()
        bench.log.commit(insert(USERS, (b"1", b"SECRET", b"b")))  # as the table will have it, and nobody tells
        bench.run(text_table("users", ["id", "password", "name"]), {"s.users": HIDDEN})
        if refused:
            with pytest.raises(OperatorError, match="has pw, of which the log has not told: password may have had"):
                bench.run(lent, {"s.users": rule})
        else:
            bench.run(lent, {"s.users": rule})
            assert bench.values("p.s.users")[-1]["op"] == "r"
        assert not any(b"SECRET" in (r.value or b"") for of in bench.kafka.topics.values() for r in of)


@pytest.mark.parametrize(
    ("columns", "where", "refused"),
    [
        ({"s.users": HIDDEN}, {}, True),
        ({"s.users": HIDDEN, "s.old": ColumnRules(mask=("name",))}, {}, True),
        ({"s.users": ColumnRules(include=("name",))}, {}, True),
        ({"s.users": ColumnRules(include=("name",)), "s.old": HIDDEN}, {}, True),
        ({}, {"s.users": "id < 9"}, True),
        ({"s.*": HIDDEN}, {"s.users": "id < 9"}, True),
        ({}, {}, False),
        ({"s.*": HIDDEN}, {"s.*": "id < 9"}, False),
        ({"s.users": HIDDEN, "s.old": ColumnRules(mask=("password", "name"))}, {}, False),
        ({"s.users": HIDDEN, "s.old": ColumnRules(include=("name",))}, {}, False),
        ({"s.users": HIDDEN, "s.old": ColumnRules(include=("name", "password"))}, {}, True),
        ({"s.users": HIDDEN, "s.o*": ColumnRules(include=("name", "password"))}, {}, True),
        ({"s.users": ColumnRules(include=("name", "a")), "s.old": ColumnRules(include=("a",))}, {}, False),
        ({"s.old": HIDDEN}, {"s.old": "id < 9"}, False),
    ],
)
def test_a_table_under_another_name_keeps_its_rules(
    columns: dict[str, ColumnRules], where: dict[str, str], *, refused: bool
) -> None:
    """Or it is not taken up: a rule names the table as it was called."""
    rules = CaptureRules(columns, where)
    if refused:
        with pytest.raises(OperatorError, match=r"table renamed: s\.users is s\.old now"):
            refuse_other_names(rules, [Another("s.users", "s.old")])
    else:
        refuse_other_names(rules, [Another("s.users", "s.old")])


def test_a_rule_by_a_pattern_is_of_those_that_have_the_column() -> None:
    """A table without it is published; one that has lost it under another name is not."""
    bench = Bench()
    plain, rules = text_table("orders", ["id", "name"]), {"s.*": HIDDEN}
    bench.log.commit(insert(USERS, (b"1", b"a", b"SECRET")), insert(plain, (b"1", b"a")))
    for _ in range(2):
        bench.run(USERS, rules, more=(plain,))
    assert [v["after"] for v in bench.values("p.s.users") + bench.values("p.s.orders")] == [
        {"id": "1", "name": "a"}
    ] * 2
    bench.log.commit(insert(text_table("users", ["id", "name", "pw"]), (b"2", b"b", b"SECRET")))
    with pytest.raises(OperatorError, match="has no column password any more, and has pw"):
        bench.run(USERS, rules, more=(plain,))


@pytest.mark.parametrize(
    "rule",
    [
        ColumnRules(exclude=("Email",)),
        ColumnRules(mask=("Email",)),
        ColumnRules(truncate={"Email": 3}),
        ColumnRules(hash=HashRule(columns=("Email",), salt="s")),
    ],
    ids=["exclude", "mask", "truncate", "hash"],
)
def test_a_column_that_a_pattern_names_in_other_letters_does_not_escape(rule: ColumnRules) -> None:
    """Where one table has Email and another email: each is what nobody should see. One that has both is as named."""
    rules = CaptureRules({"s.*": rule}, {})
    tables = [
        text_table(name, ["id", *of]) for name, of in (("a", ["Email"]), ("b", ["email"]), ("c", ["Email", "email"]))
    ]
    (refused,) = rules.refusals(tables, first=True)
    assert refused.message.startswith("source.columns: table s.b has email, which the rule calls Email")
    assert list(rules.refusals([tables[0], tables[2]], first=True)) == []


def test_a_renamed_column_that_a_condition_speaks_of() -> None:
    """Stops the connector; with the new name in the file, rows of the log from before are read as they are now."""

    def column(name: str) -> Column:
        return Column(name, "text", Kind("string"), text_column(name).encode, equality="exact")

    before, after = text_table("users", ["id", column("status")]), text_table("users", ["id", column("state")])
    bench = Bench()
    bench.log.commit(insert(before, (b"1", b"paid")), insert(before, (b"2", b"draft")))
    bench.run(before, {}, {"s.users": "status <> 'draft'"})
    bench.log.commit(insert(before, (b"3", b"paid")), insert(before, (b"4", b"draft")))
    bench.log.commit(insert(after, (b"5", b"paid")))
    with pytest.raises(OperatorError, match="has no column status"):
        bench.run(before, {}, {"s.users": "status <> 'draft'"})
    bench.run(after, {}, {"s.users": "state <> 'draft'"})
    last = {r.key: r.value for r in bench.kafka.committed("p.s.users")}
    found = [orjson.loads(value)["after"] for value in last.values() if value is not None]
    assert sorted(row["id"] for row in found) == ["1", "3", "5"]
    assert {row["state"] for row in found} == {"paid"}


def test_include_needs_no_names_of_the_others() -> None:
    """What is added or renamed is not published."""
    bench = Bench()
    rules = {"s.users": ColumnRules(include=("name",))}
    bench.run(USERS, rules)
    renamed = text_table("users", ["id", "name", "pw"])
    bench.log.commit(insert(renamed, (b"2", b"b", b"SECRET")))
    bench.run(USERS, rules)
    assert [v["after"] for v in bench.values("p.s.users")] == [{"id": "2", "name": "b"}]


def test_the_schema_topic_describes_what_is_published() -> None:
    """Neither the excluded column's name nor the salt is in it; each change of the rules makes a version."""
    bench = Bench()
    bench.log.commit(insert(USERS, (b"1", b"a", b"SECRET")))
    bench.run(USERS, {"s.users": HIDDEN})
    hashed = ColumnRules(hash=HashRule(columns=("password",), salt="pepper"), mask=("name",))
    bench.run(USERS, {"s.users": hashed})
    bench.run(USERS, {})
    described = bench.values("p.schema")
    assert [[(c["name"], c["kind"]) for c in d["columns"]] for d in described] == [  # type: ignore[index,attr-defined]
        [("id", "string"), ("name", "string")],
        [("id", "string"), ("name", "string"), ("password", "string")],
        [("id", "string"), ("name", "string"), ("password", "string")],
    ]
    assert b"password" not in orjson.dumps(described[0])
    assert b"pepper" not in orjson.dumps(described)
    events = [v["after"] for v in bench.values("p.s.users")]
    assert events[0] == {"id": "1", "name": "a"}
    assert events[1]["name"] == "********"  # type: ignore[index]
    assert events[2] == {"id": "1", "name": "a", "password": "SECRET"}


def test_a_dead_letter_has_only_what_is_published() -> None:
    """A value that cannot be written does not bring the others of its row to light."""
    bench = Bench()
    table = text_table("users", ["id", "name", "password", "email", "note"])
    rules = ColumnRules(exclude=("password",), mask=("email",), truncate={"note": 2})
    bench.log.commit(insert(table, (b"1", b"\xff", b"SECRET", b"SECRET", b"ok-SECRET")))
    bench.run(table, {"s.users": rules})
    (letter,) = bench.values("p.dead-letter-c")
    assert letter["columns"] == ["name"]
    assert letter["after"] == {"id": "MQ==", "name": "/w==", "email": "KioqKioqKio=", "note": "b2s="}


def test_what_verify_compares_has_the_kinds_that_are_published() -> None:
    """A number that is masked is text there, too."""
    number = Column("n", "integer", Kind("int32"), lambda value: value)
    table = text_table("users", ["id", "password", number])
    log = MemoryLog()
    log.commit(insert(table, (b"1", b"SECRET", b"5")))
    rules = CaptureRules({"s.users": ColumnRules(exclude=("password",), mask=("n",))}, {})
    with PublishedTables([table], MemorySnapshotter(log), prefix="p", rules=rules) as published:
        (here,) = published.tables.values()
        assert [(column.name, column.kind.name) for column in here.columns] == [("id", "string"), ("n", "string")]
        for part in (*published.read("s.users"), *published.find("s.users", [(b"1",)])):
            assert part.table == here
            assert [row.after for row in part.rows] == [b'{"id":"1","n":"********"}']


@pytest.mark.parametrize(
    "rules",
    [
        HIDDEN,
        ColumnRules(mask=("password",)),
        ColumnRules(hash=HashRule(columns=("password",), salt="pepper")),
        ColumnRules(truncate={"password": 2}),
    ],
    ids=["exclude", "mask", "hash", "truncate"],
)
def test_labels_of_a_column_that_is_hidden_are_nowhere(rules: ColumnRules) -> None:
    """A type of MySQL says them; the source is told the type all the same, as long as it is the same."""
    told = "enum('it''s','SECRET')"
    of = replace(USERS, columns=(*USERS.columns[:2], replace(USERS.columns[2], type=told)))
    bench = Bench()
    bench.log.commit(insert(of, (b"1", b"a", b"SECRET")))
    bench.run(of, {"s.users": rules})
    bench.run(of, {"s.users": rules})
    (described,) = bench.values("p.schema")
    text = orjson.dumps(described)
    assert b"SECRET" not in text
    assert b"enum(" in text
    for now, type_ in ((of, told), (USERS, without_labels(told))):
        versions = SchemaVersions(
            [text], connector="c", source="memory", prefix="p", database="d",
            rules=CaptureRules({"s.users": rules}, {}), tables=[now],
        )  # fmt: skip
        ((whole,),) = versions.described().values()
        assert whole.columns == (("id", "text"), ("name", "text"), ("password", type_))
