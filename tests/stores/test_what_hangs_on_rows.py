"""What others have hung on rows of a PostgreSQL copy stays, also where a topic is read again from its beginning."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from cdc.config.apply_config import ApplyTable
from cdc.model.change import Kind
from cdc.model.errors import OperatorError
from spark_apply.events.projection import projected_table
from spark_apply.model.completeness import Mark
from spark_apply.model.store import EVERYTHING, CopyError, Refused, Visibility
from spark_apply.model.target_table import TargetTable, Version
from spark_apply.stores.postgres.batch import row_by_row
from spark_apply.stores.postgres.session.server import Server
from spark_apply.stores.postgres.store import PostgresStore
from tests.conftest import Database

Event = tuple[int, int, str]
"""Id, value, op."""


class Copies:
    """Copies of tables (id, v), and the events that wait in them."""

    def __init__(self, database: Database, *names: str) -> None:
        self.store, self._database, self._at = PostgresStore(Server(database.url, "stores.copy"), "shop"), database, 0
        columns = (("id", Kind("int64")), ("v", Kind("int64")))
        versions = [Version("shop", "public", name, f"shop.public.{name}", 1, ("id",), columns) for name in names]
        self.tables = {of.table: projected_table([of], ApplyTable(stores=("copy",))) for of in versions}
        for table in self.tables.values():
            self.store.open(table)
        self.told: list[Refused] = []

    def read_again(self, **events: Sequence[Event]) -> None:
        """Fold the events in, which are all that the topics have from their beginnings."""
        for name in events:
            self.store.set_mark(self.tables[name], Mark({}, None))
        self.fold(**events)

    def fold(self, **events: Sequence[Event]) -> None:
        """Fold the events in."""
        copies = self._database.rows("SELECT name, number FROM cdc_apply.copies")
        numbers = {str(name): number for name, number in copies}
        shown = {}
        for name, of in events.items():
            for id_, v, op in of:
                self._at += 1
                values = f"({id_}, {v}, '{self._at:09}', '{op}', 0, {self._at})"
                self._database.execute(f"INSERT INTO cdc_apply.waiting_{numbers[name]} VALUES {values}")
            shown[f"public.{name}"] = Visibility(
                Mark({0: self._at}, None, version=1), EVERYTHING, refuse=self.told.extend
            )
        self.store.fold([], shown)

    def table(self, name: str) -> TargetTable:
        return self.tables[name]


@pytest.fixture
def copies(postgres18: Database) -> Copies:
    return Copies(postgres18, "bought", "customers")


def created(*ids: int) -> list[Event]:
    return [(number, number, "c") for number in ids]


@pytest.mark.parametrize("action", ["NO ACTION", "CASCADE", "SET NULL"])
def test_a_foreign_key_of_another_copy(action: str, copies: Copies, postgres18: Database) -> None:
    """The rows that refer to the copy are as they were: what is still there is written over."""
    copies.fold(customers=created(1, 2, 3), bought=created(1, 2))
    postgres18.execute(f"ALTER TABLE bought ADD FOREIGN KEY (v) REFERENCES customers ON DELETE {action}")
    copies.read_again(customers=[*created(1, 2, 3, 4), (3, 3, "d"), (1, 5, "u")])
    assert sorted(postgres18.rows("SELECT id, v FROM bought")) == [(1, 1), (2, 2)]
    assert sorted(postgres18.rows("SELECT id, v FROM customers")) == [(1, 5), (2, 2), (4, 4)]
    copies.read_again(customers=created(2), bought=created(2))
    assert postgres18.rows("SELECT id, v FROM bought") == postgres18.rows("SELECT id, v FROM customers") == [(2, 2)]
    assert not copies.told


def test_columns_of_somebody_s_own(copies: Copies, postgres18: Database) -> None:
    copies.fold(customers=created(1, 2))
    postgres18.execute("ALTER TABLE customers ADD COLUMN segment text", "UPDATE customers SET segment = 'gold'")
    copies.read_again(customers=[*created(1, 3), (1, 7, "u")])
    assert sorted(postgres18.rows("SELECT id, v, segment FROM customers")) == [(1, 7, "gold"), (3, 3, None)]


@pytest.mark.parametrize("action", ["NO ACTION", "CASCADE", "RESTRICT"])
def test_a_foreign_key_to_the_copy_itself(action: str, copies: Copies, postgres18: Database) -> None:
    """It is looked at once the rows are as their topic has them; nothing cascades to one that refers elsewhere now."""
    copies.fold(customers=[(1, 1, "c"), (2, 1, "c"), (5, 2, "c")])
    postgres18.execute(
        f"ALTER TABLE customers ADD FOREIGN KEY (v) REFERENCES customers ON DELETE {action}",
        "ALTER TABLE customers ADD COLUMN segment text",
        "UPDATE customers SET segment = 'gold'",
    )
    copies.read_again(customers=[*created(1, 3), (2, 1, "c"), (5, 2, "c"), (2, 3, "u"), (1, 1, "d")])
    kept = [(2, 3, "gold"), (3, 3, None), (5, 2, "gold")]
    assert sorted(postgres18.rows("SELECT id, v, segment FROM customers")) == kept
    postgres18.execute("ALTER TABLE customers ADD CHECK (v <> 13)")
    copies.read_again(customers=[(3, 4, "u"), (4, 4, "c"), (5, 4, "c"), (9, 13, "c")])
    assert sorted(postgres18.rows("SELECT id, v FROM customers")) == [(3, 4), (4, 4), (5, 4)]
    assert [one.offset for one in copies.told] == [13]


@pytest.mark.parametrize("action", ["NO ACTION", "RESTRICT"])
@pytest.mark.parametrize("rows", [1, 9])
def test_copies_that_refer_to_each_other(
    action: str, rows: int, copies: Copies, postgres18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that its topic has no more goes once no row of the other copy refers to it, which waits for a new one."""
    monkeypatch.setattr(row_by_row, "_MOST_BLOCKED", 5)
    copies.fold(customers=created(1, 2), bought=[(n, 1, "c") for n in range(rows)])
    postgres18.execute(f"ALTER TABLE bought ADD FOREIGN KEY (v) REFERENCES customers ON DELETE {action}")
    copies.read_again(customers=created(2, 4), bought=[(n, 4, "c") for n in range(rows)])
    assert sorted(postgres18.rows("SELECT id, v FROM customers")) == [(2, 2), (4, 4)]
    assert sorted(postgres18.rows("SELECT id, v FROM bought")) == [(n, 4) for n in range(rows)]
    with pytest.raises(CopyError) as told:
        copies.read_again(customers=created(2, 5), bought=[*((n, 4, "c") for n in range(rows)), (77, 5, "c")])
    assert list(told.value.errors) == ["public.customers"]
    assert not copies.told


def test_triggers_that_leave_rows_as_they_were(copies: Copies, postgres18: Database) -> None:
    """None passes for one that is written because it was newer, and none stays in silence that is to go."""
    copies.fold(customers=created(1, 2, 3))
    postgres18.execute(
        "UPDATE customers SET _cdc_position = '000000005'",  # as late, or as the event that is written over it
        "CREATE FUNCTION nope() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN IF OLD.id = 2 THEN RETURN NULL; END IF; RETURN coalesce(NEW, OLD); END$$",
        "CREATE TRIGGER nope BEFORE UPDATE ON customers FOR EACH ROW EXECUTE FUNCTION nope()",
    )
    copies.read_again(customers=[(1, 10, "c"), (2, 20, "c")])
    assert sorted(postgres18.rows("SELECT id, v FROM customers")) == [(1, 10), (2, 2)]
    assert [(one.offset, "(27000)" in one.reason) for one in copies.told] == [(5, True)]
    copies.told.clear()
    postgres18.execute(
        "DROP TRIGGER nope ON customers",
        "CREATE TRIGGER nope BEFORE DELETE ON customers FOR EACH ROW EXECUTE FUNCTION nope()",
    )
    with pytest.raises(CopyError, match="a trigger, a rule or a policy leaves a row out"):
        copies.read_again(customers=created(1))
    assert sorted(postgres18.rows("SELECT id, v FROM customers")) == [(1, 10), (2, 2)]
    assert not copies.told


def test_a_trigger_that_leaves_what_is_the_same(copies: Copies, postgres18: Database) -> None:
    copies.fold(customers=created(1, 2))
    postgres18.execute(
        "UPDATE customers SET _cdc_position = '00000000' || id + 2",
        "CREATE TRIGGER same BEFORE UPDATE ON customers FOR EACH ROW EXECUTE FUNCTION"
        " suppress_redundant_updates_trigger()",
    )
    copies.read_again(customers=[(1, 1, "c"), (2, 2, "c"), (5, 5, "c")])
    assert sorted(postgres18.rows("SELECT id, v FROM customers")) == [(1, 1), (2, 2), (5, 5)]
    assert not copies.told


def test_a_rule_that_notes_what_goes(copies: Copies, postgres18: Database) -> None:
    copies.fold(customers=created(1, 2))
    postgres18.execute(
        "CREATE TABLE went (id bigint)",
        "CREATE RULE noted AS ON DELETE TO customers DO ALSO INSERT INTO went VALUES (OLD.id)",
    )
    copies.read_again(customers=created(1))
    assert postgres18.rows("SELECT id FROM customers") == [(1,)]
    assert not copies.told


def test_tables_below_it(copies: Copies, postgres18: Database) -> None:
    """Rows of a table that inherits from the copy are not the copy's: none is deleted, none is taken for it."""
    copies.fold(customers=created(1, 2))
    postgres18.execute(
        "CREATE TABLE archive (why text) INHERITS (customers)", "INSERT INTO archive VALUES (2, 9), (7, 7)"
    )
    copies.fold(customers=[(2, 2, "d"), (7, 8, "c"), (3, 3, "c")])
    copies.fold(customers=[(7, 9, "d")])
    assert sorted(row.id for row in copies.store.rows(copies.table("customers"))) == ['{"id":1}', '{"id":3}']
    copies.read_again(customers=created(1, 2))
    assert sorted(postgres18.rows("SELECT id, v FROM ONLY customers")) == [(1, 1), (2, 2)]
    assert sorted(postgres18.rows("SELECT id, v FROM archive")) == [(2, 9), (7, 7)]


def test_values_that_were_exchanged_since(copies: Copies, postgres18: Database) -> None:
    """A unique value of a row that is to be written over is another row's by now."""
    copies.fold(customers=created(1, 2, 3))
    postgres18.execute("ALTER TABLE customers ADD UNIQUE (v)")
    copies.read_again(customers=[*created(1, 2), (1, 0, "u"), (2, 1, "u"), (4, 3, "c")])
    assert sorted(postgres18.rows("SELECT id, v FROM customers")) == [(1, 0), (2, 1), (4, 3)]
    assert not copies.told


def test_a_row_that_is_refused_then(copies: Copies, postgres18: Database) -> None:
    """It stays as it was, and in quarantine; the others are as their topic has them."""
    copies.fold(customers=created(1, 2, 3))
    postgres18.execute("ALTER TABLE customers ADD CHECK (v <> 13)")
    copies.read_again(customers=[*created(1, 4), (2, 13, "u")])
    assert sorted(postgres18.rows("SELECT id, v FROM customers")) == [(1, 1), (2, 2), (4, 4)]
    assert [one.offset for one in copies.told] == [6]


def test_a_column_that_the_source_has_by_now(copies: Copies, postgres18: Database) -> None:
    """Values of another hand do not pass for the source's; a column that has none in it is taken."""
    copies.fold(customers=created(1, 2), bought=created(1))
    for name in ("customers", "bought"):
        postgres18.execute(f"ALTER TABLE {name} ADD COLUMN segment text")
    postgres18.execute("UPDATE customers SET segment = 'gold'")
    copies.fold(customers=[(1, 2, "u")], bought=[(1, 2, "u")])  # a mark that knows of the columns
    columns = (("id", Kind("int64")), ("v", Kind("int64")))
    for name in ("customers", "bought"):
        versions = [
            Version("shop", "public", name, f"shop.public.{name}", 1, ("id",), columns),
            Version("shop", "public", name, f"shop.public.{name}", 2, ("id",), (*columns, ("segment", Kind("string")))),
        ]
        versions[1] = replace(versions[1], position="000000009")
        copies.tables[name] = projected_table(versions, ApplyTable(stores=("copy",)))
    copies.store.open(copies.table("bought"))
    copies.fold(bought=created(2))
    with pytest.raises(OperatorError, match="has a column segment that another hand has made") as told:
        copies.store.open(copies.table("customers"))
    assert "rename: {segment: …} under tables.public.customers" in (told.value.hint or "")
    postgres18.execute("ALTER TABLE customers RENAME COLUMN segment TO own")
    for _ in range(2):  # also where it has ended before it wrote a mark
        copies.store.open(copies.table("customers"))
    copies.fold(customers=[(2, 3, "u")])
    assert sorted(postgres18.rows("SELECT id, v, own, segment FROM customers")) == [
        (1, 2, "gold", None),
        (2, 3, "gold", None),
    ]


def test_what_stands_in_its_place(copies: Copies, postgres18: Database) -> None:
    """A view is told as one. A partitioned table is followed, and no rebuild makes a plain one of it unasked."""
    copies.fold(customers=created(1, 2), bought=created(1, 2))
    for kind in ("VIEW", "MATERIALIZED VIEW"):
        postgres18.execute("ALTER TABLE bought RENAME TO old", f"CREATE {kind} bought AS SELECT * FROM old")
        with pytest.raises(OperatorError, match=f'"bought" is a {kind.lower()}') as told:
            copies.store.open(copies.table("bought"))
        assert "give it another name, and the job makes the table" in (told.value.hint or "")
        postgres18.execute(f"DROP {kind} bought", "ALTER TABLE old RENAME TO bought")
    postgres18.execute(
        "ALTER TABLE customers RENAME TO plain",
        "CREATE TABLE customers (LIKE plain INCLUDING ALL) PARTITION BY HASH (id)",
        "CREATE TABLE odd PARTITION OF customers FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
        "CREATE TABLE even PARTITION OF customers FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
        "INSERT INTO customers SELECT * FROM plain",
    )
    copies.store.open(copies.table("customers"))
    copies.read_again(customers=[*created(1, 3), (1, 7, "u")])
    copies.fold(customers=[(3, 3, "d"), (4, 4, "c")])
    assert sorted(postgres18.rows("SELECT id, v FROM customers")) == [(1, 7), (4, 4)]
    assert sorted(row.id for row in copies.store.rows(copies.table("customers"))) == ['{"id":1}', '{"id":4}']
    with pytest.raises(OperatorError, match="a rebuild replaces: its partitions"):
        copies.store.beside(copies.table("customers"))
    assert not copies.told


def test_a_key_that_gets_wider(postgres18: Database) -> None:
    """Deleted keys are remembered in its new type, too, where no position says what is whole."""
    store, told = PostgresStore(Server(postgres18.url, "stores.copy"), "shop"), list[Refused]()
    shown = {"public.wide": Visibility(Mark({}, None), EVERYTHING, refuse=told.extend)}
    for number, kind in enumerate(("int32", "int64"), 1):
        versions = [
            Version("shop", "public", "wide", "shop.public.wide", at, ("id",), (("id", Kind(of)), ("v", Kind("int64"))))
            for at, of in enumerate(("int32", kind), 1)
        ][:number]
        store.open(projected_table(versions, ApplyTable(stores=("copy",))))
        postgres18.execute(
            "INSERT INTO cdc_apply.waiting_1 VALUES"
            f" ({7 if number == 1 else 1 << 40}, 1, '{number}1', 'c', 0, 1), (7, 1, '{number}2', 'd', 0, 2),"
            f" ({8 if number == 1 else 1 << 40}, 1, '{number}3', 'd', 0, 3)"
        )
        store.fold([], shown)
    assert not told
    assert postgres18.rows("SELECT id FROM wide") == []
    store.close()


def test_a_name_that_postgresql_would_cut_off(postgres18: Database) -> None:
    """It would be that of another column, or table; what gives it a shorter one is told, and the copy stays."""
    store, (most, name, cut) = (
        PostgresStore(Server(postgres18.url, "stores.copy"), "shop"),
        ("n" * 64, "t" * 63, "é" * 32),
    )
    columns = (("id", Kind("int64")), ("n" * 63, Kind("int64")))
    version = Version("shop", "public", name, "shop.public.t", 1, ("id",), columns)
    later = replace(version, number=2, columns=(*columns, (most, Kind("int64"))))
    store.open(projected_table([version], (plain := ApplyTable(stores=("copy",)))))
    for made, hint in (
        (
            projected_table([version, later], plain),
            f"rename: {{{most}: …}} under tables.public.{name}, or columns: […]",
        ),
        (projected_table([replace(version, table=f"{name}2")], plain), f"target: … under tables.public.{name}2"),
        (projected_table([replace(version, schema=cut)], plain), "leave this table out of the store"),
    ):
        for look in (store.foresee, store.open):
            with pytest.raises(OperatorError, match="is longer than PostgreSQL's 63 bytes") as told:
                look(made)
            assert hint in (told.value.hint or "")
    assert store.foresee(projected_table([version], plain)).identity
    store.close()


def test_a_name_that_postgresql_keeps_for_itself(postgres18: Database) -> None:
    """As another database does not; the server's own words tell no way out."""
    store, plain = PostgresStore(Server(postgres18.url, "stores.copy"), "shop"), ApplyTable(stores=("copy",))
    version = Version(
        "shop", "public", "t", "shop.public.t", 1, ("id",), (("id", Kind("int64")), ("xmin", Kind("int64")))
    )
    for made, said, hint in (
        (version, "has a column “xmin” of its own", "rename: {xmin: …} under tables.public.t, or columns: […]"),
        (
            replace(version, schema="pg_shop", columns=version.columns[:1]),
            "that begin with pg_",
            "leave this table out",
        ),
    ):
        for look in (store.foresee, store.open):
            with pytest.raises(OperatorError, match=said) as told:
                look(projected_table([made], plain))
            assert hint in (told.value.hint or "")
    store.open(projected_table([version], replace(plain, rename={"xmin": "least"})))
    store.close()


def test_a_reader_of_what_is_ours_alone_holds_nothing_up(copies: Copies, postgres18: Database) -> None:
    """A `pg_dump` of the database has a lock on each table of it, for as long as it takes."""
    copies.fold(customers=created(1))
    numbers = postgres18.rows("SELECT number FROM cdc_apply.copies")
    dump = postgres18.connect()
    dump.autocommit = False
    with dump.cursor() as cur:
        for (number,) in numbers:
            cur.execute(f"LOCK TABLE cdc_apply.waiting_{number}, cdc_apply.gone_{number} IN ACCESS SHARE MODE")
    began = time.monotonic()
    copies.fold(customers=[(2, 2, "c"), (1, 1, "d")])
    copies.read_again(customers=[*created(1, 2, 3), (2, 2, "d")], bought=created(4))
    assert time.monotonic() - began < 4
    dump.close()
    assert postgres18.rows("SELECT id FROM customers ORDER BY id") == [(1,), (3,)]
    assert postgres18.rows("SELECT id FROM bought ORDER BY id") == [(4,)]
    for (number,) in numbers:
        assert postgres18.rows(f"SELECT FROM cdc_apply.waiting_{number}") == []
    copies.fold(customers=created(5))
    assert postgres18.rows("SELECT id FROM customers ORDER BY id") == [(1,), (3,), (5,)]


@pytest.mark.parametrize("dropped", ["waiting", "gone", "waiting, cdc_apply.gone"])
def test_what_is_ours_alone_was_dropped(dropped: str, copies: Copies, postgres18: Database) -> None:
    """Events waited in it, or deletes were remembered: the copy is opened again, and read again from its topic."""
    copies.fold(customers=created(1, 2, 3), bought=created(1))
    ((number,),) = postgres18.rows("SELECT number FROM cdc_apply.copies WHERE name = 'customers'")
    tables = ", ".join(f"{name}_{number}" for name in dropped.split(", "))
    postgres18.execute(f"DROP TABLE cdc_apply.{tables}")
    copies.fold(bought=created(2))
    customers = copies.table("customers")
    copies.store.close()
    copies.store = PostgresStore(Server(postgres18.url, "stores.copy"), "shop")
    for table in copies.tables.values():
        copies.store.open(table)
    assert copies.store.mark(customers) is None
    assert copies.store.mark(copies.table("bought")) is not None
    copies.read_again(customers=[*created(1, 2), (3, 3, "d"), (4, 4, "c")])
    assert postgres18.rows("SELECT id FROM customers ORDER BY id") == [(1,), (2,), (4,)]
    assert postgres18.rows("SELECT id FROM bought ORDER BY id") == [(1,), (2,)]
