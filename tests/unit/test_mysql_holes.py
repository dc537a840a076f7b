"""What follows of events that do not say what they changed: which rows, which tables, or nothing."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.config.source_config import SourceConfig
from cdc.model.change import UNCHANGED, Change, Op, Row, Table
from cdc.model.errors import GapError, OperatorError, ProtocolError
from connectors.mysql.binlog import events, parser, table_map
from connectors.mysql.binlog.events import TableColumn
from connectors.mysql.binlog.positions import BinlogPosition
from connectors.mysql.catalog import reach
from connectors.mysql.catalog.catalog import Captured
from connectors.mysql.catalog.reach import Reach
from connectors.mysql.rows import partial_images
from connectors.mysql.rows.holes import Holes
from connectors.mysql.rows.relations import Followed
from connectors.mysql.rows.transactions import Committed, Grouper
from connectors.mysql.statements.ddl import ChangesRows, Filled
from connectors.mysql.statements.judgement import Both, Temporary, judge
from connectors.mysql.statements.temporary_tables import Session
from connectors.mysql.values import mapping
from tests.encoders.mysql import encode, header

AT = BinlogPosition("b.000001", 4)
ID = TableColumn("id", table_map.LONG, 0, nullable=False, unsigned=False)
PART = TableColumn("part", table_map.LONG, 0, nullable=False, unsigned=False)
NOTE = TableColumn("note", table_map.LONG, 0, nullable=True, unsigned=False)
DOCUMENT = TableColumn("doc", table_map.JSON, 4, nullable=True)
OURS, THEIRS = Session(7, specific=False), Session(8, specific=False)


def table(name: str = "t", *key: str) -> Table:
    return Table("d", name, tuple(map(mapping.column, (ID, PART, NOTE))), key or ("part", "id"))


def of_images(op: Op, before: Row | None, after: Row | None, *key: str, stops: bool = False) -> list[Change]:
    return list(Holes(stops=stops).of_images(op, table("t", *key), [(before, after)], AT, partial=False))


def rows(changes: Iterable[Change]) -> list[Row | None]:
    assert all(change.op is Op.READ and change.before is None for change in changes)
    return [change.after for change in changes]


U = UNCHANGED


@pytest.mark.parametrize(
    ("op", "before", "after", "read"),
    [
        (Op.UPDATE, (b"1", b"2", U), (U, U, U), [(b"1", b"2", U)]),
        (Op.UPDATE, (b"1", b"2", U), (b"5", U, U), [(b"1", b"2", U), (b"5", b"2", U)]),
        (Op.UPDATE, (b"1", b"2", U), (b"1", b"2", U), [(b"1", b"2", U)]),
        (Op.CREATE, None, (b"1", b"2", U), [(b"1", b"2", U)]),
        (Op.CREATE, None, (U, b"2", b"3"), [None]),
        (Op.UPDATE, (U, b"2", U), (U, U, b"9"), [None]),
        (Op.DELETE, (U, b"2", b"3"), None, [None]),
    ],
)
def test_rows_that_are_not_whole_are_read_by_the_keys_they_had_and_have(
    op: Op, before: Row | None, after: Row | None, read: list[Row | None]
) -> None:
    """Where an image tells no key, any row may be meant."""
    assert rows(of_images(op, before, after)) == read


def test_rows_that_tell_enough_are_as_they_are() -> None:
    """A delete is its key, and a new row needs no old one."""
    (gone,) = of_images(Op.DELETE, (b"1", b"2", U), None)
    (there,) = of_images(Op.UPDATE, (b"1", b"2", U), (b"1", b"2", b"3"))
    assert (gone.op, there.op) == (Op.DELETE, Op.UPDATE)


def test_a_table_is_asked_for_once_in_an_event() -> None:
    images: list[Any] = [(None, (U, b"2", b"3")), (None, (U, b"4", b"5")), (None, (b"1", b"2", b"3"))]
    found = list(Holes(stops=False).of_images(Op.CREATE, table(), images, AT, partial=False))
    assert [change.op for change in found] == [Op.READ, Op.CREATE]


@pytest.mark.parametrize(("partial", "setting"), [(False, "binlog_row_image = FULL"), (True, "row_value_options = ''")])
def test_stop_stops_with_the_setting(partial: bool, setting: str) -> None:
    with pytest.raises(GapError, match="is not whole") as caught:
        list(Holes(stops=True).of_images(Op.UPDATE, table(), [((b"1", b"2", U), (U, U, U))], AT, partial=partial))
    assert setting in str(caught.value.hint)


def test_it_is_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "cdc"):
        holes = Holes(stops=False)
        for _ in range(3):
            list(holes.of_images(Op.UPDATE, table(), [((b"1", b"2", U), (U, U, U))], AT, partial=False))
    assert len(caplog.messages) == 1
    assert "d.t" in caplog.messages[0]


def _partial(*rows_: bytes, columns: int = 4) -> events.PartialUpdateRows:
    return events.PartialUpdateRows(header(39), 1, 1, columns, b"\x0f", b"\x0f", b"".join(rows_))


def _row(note: int | None, document: bytes | None, *, id_: int = 1) -> bytes:
    nulls = (note is None) << 2 | (document is None) << 3
    parts = [bytes([nulls]), struct.pack("<ii", id_, 2)]
    parts += [struct.pack("<i", note)] if note is not None else []
    parts += [struct.pack("<I", len(document)) + document] if document is not None else []
    return b"".join(parts)


def test_parts_of_documents_are_passed_over() -> None:
    """With and without the bits that say which documents are there in part."""
    columns = (ID, PART, NOTE, DOCUMENT)
    body = (
        *(_row(5, b"whole"), b"\1\1", _row(6, b"part", id_=3)),
        *(_row(None, None), b"\0", _row(None, b"another")),
    )
    found = [(old[0], new[0]) for old, new in partial_images.images(_partial(*body), columns) if old and new]
    assert found == [(b"1", b"3"), (b"1", b"1")]


@pytest.mark.parametrize("cut", range(1, 40))
def test_parts_of_documents_that_end_early(cut: int) -> None:
    body = b"".join((_row(5, b"whole"), b"\1\1", _row(6, b"part")))
    with pytest.raises(ProtocolError):
        partial_images.images(_partial(body[:-cut]), (ID, PART, NOTE, DOCUMENT))


def test_load_data_is_a_statement() -> None:
    """As the server writes it, behind the blocks of its file."""
    plain = encode(events.Query(header(2), 7, 0, "d", "LOAD DATA INFILE 'x' INTO TABLE t", "utf8mb4", None))
    head, rest = plain[19:32], plain[32:-4]
    described = events.FormatDescription(header(15), 4, "9.7.0", 0, b"", checksum=False)
    body = head + struct.pack("<IIIB", 1, 10, 20, 0) + rest
    raw = struct.pack("<IBIIIH", 0, 18, 1, 19 + len(body), 0, 0) + body
    found = parser.parse(raw, described)
    assert isinstance(found, events.Query)
    assert (found.thread_id, found.schema) == (7, "d")
    assert judge(found.statement, found.schema) == ChangesRows("LOAD", (("d", "t"),))
    for type_ in (5, 9, 11, 13, 14, 17):
        passed = parser.parse(struct.pack("<IBIIIH", 0, type_, 1, 19 + 8, 0, 0) + bytes(8), described)
        assert isinstance(passed, events.Ignorable)


INCIDENT = b"\1\0\x1derror writing the binary log."


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (struct.pack("<IBIIIH", 0, 26, 1, 19 + len(INCIDENT), 300, 0) + INCIDENT, "INCIDENT in the log at"),
        (encode(events.Query(header(2), 7, 0, "", "XA COMMIT X'79',X'',1", "utf8mb4", None)), "XA COMMIT in the log"),
    ],
)
@pytest.mark.parametrize("begins", [True, False])  # with a GTID, or as MariaDB writes an incident
def test_what_the_log_has_no_rows_of_may_be_of_any_table(
    event: bytes, said: str, *, begins: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The server could not log it, or it was prepared before the log was followed: a transaction by itself."""
    described = events.FormatDescription(header(15), 4, "9.7.0", 0, b"", checksum=event[4] == 2)
    group = Grouper(lambda _: True)
    gtid = events.AnonymousGtid(header(34), 1, 2, None, None, None)
    assert not begins or group.feed(gtid, b"", "b.000001") is None
    done = group.feed(parser.parse(event, described), event, "b.000001")
    assert isinstance(done, Committed)
    ((found, _),) = done.rows.buffer.read(lambda raw: parser.parse(raw, described))
    assert isinstance(found, events.Query)
    assert read(followed("t", "u"), found.statement) == ["t", "u"]
    assert said in caplog.text
    with pytest.raises(GapError, match=said) as caught:
        read(followed("t", on_hole="stop"), found.statement)
    assert "on_hole: reread" in (caught.value.hint or "")


END = [0]
"""Where the log ends when the server is asked."""


def followed(*names: str, reached: Any = None, **options: Any) -> tuple[Followed, Any]:
    """Tables that are followed, and a catalog that says what a statement may reach."""
    captured = [Captured(table(name), (ID, PART, NOTE), 0) for name in names]
    asked: list[Any] = []

    def of(written: Any) -> Any:
        asked.append(written)
        return reached if reached is not None else frozenset(written) & {("d", name) for name in names}

    config = SourceConfig(type="mysql", url="mysql://x", tables=("d.*",), **options)
    catalog = SimpleNamespace(
        reach=lambda _: SimpleNamespace(of=of, log_end=lambda: END[0], seen=set()),
        find=lambda _, name, __: next((one for one in captured if one.table.name == name), None),
        exists=lambda _, name: name in names,
        asked=asked,
    )
    return Followed(config, captured), catalog


def read(of: tuple[Followed, Any], statement: str, session: Session = OURS) -> list[str]:
    """The tables that a statement lets be read again; those that it empties with a !."""
    changes = of[0].of_statement(judge(statement, "d", "9.7.0"), AT, lambda: of[1], session)
    return [c.table.name + ("!" if c.op is Op.TRUNCATE else "") for c in changes]


def test_statements_in_the_place_of_rows() -> None:
    """Those that name tables, those that may write any, those that reach nothing that is captured."""
    of = followed("a", "t")
    assert read(of, "INSERT INTO t VALUES (1)") == ["t"]
    assert read(of, "UPDATE t JOIN other SET t.v = 1") == ["t"]
    assert read(of, "CALL p()") == ["a", "t"]
    assert read(of, "INSERT INTO other VALUES (1)") == []
    assert read(followed("a", "t", reached=frozenset({("d", "a")})), "INSERT INTO other VALUES (1)") == ["a"]
    assert read(of, "SELECT 1") == []
    assert isinstance(judge("CREATE TABLE a AS SELECT f()", "d"), Both)
    assert read(of, "CREATE TABLE a AS SELECT f()") == ["a", "a", "t"]


def test_where_any_table_may_be_written_the_server_is_not_asked() -> None:
    of = followed("t")
    assert read(of, "DO f()") == ["t"]
    assert of[1].asked == []


def test_the_server_is_asked_once_for_what_hangs_on_tables() -> None:
    """Until DDL, a trigger's or a view's comes by: a busy session costs no look for each statement."""
    of = followed("t")
    for between in ("SELECT 1", "ALTER TABLE other ADD c INT", "CREATE TRIGGER x AFTER INSERT ON y FOR EACH ROW DO 1"):
        assert read(of, between) == []
        for _ in range(3):
            assert read(of, "INSERT INTO other VALUES (1)") == []
    assert len(of[1].asked) == 3


@pytest.mark.parametrize("ddl", ["DROP TRIGGER x", "DROP VIEW x", "ALTER TABLE other DROP FOREIGN KEY x"])
def test_what_was_looked_at_after_it_was_dropped_is_not_believed(ddl: str) -> None:
    """The connector is behind: what a statement set off may be gone by the time the server is asked."""
    of = followed("t")
    END[0] = 0
    assert read(of, "INSERT INTO other VALUES (1)") == []
    assert read(of, ddl) == []
    END[0] = AT.commit + 1
    assert read(of, "INSERT INTO other VALUES (1)") == []
    assert read(of, ddl) == ["t"]
    assert read(of, ddl) == []
    END[0] = 0


def test_stop_stops_at_what_concerns_captured_tables_alone() -> None:
    of = followed("t", on_hole="stop")
    assert read(of, "INSERT INTO other VALUES (1)") == []
    with pytest.raises(GapError, match=r"a statement \(INSERT\) in the place of rows in the log at b.000001:4"):
        read(of, "INSERT INTO t VALUES (1)")
    with pytest.raises(GapError, match="rolled back in part"):
        list(of[0].unsure([("d", "t")], AT))


def test_what_is_rolled_back_in_part_is_read_again() -> None:
    of = followed("a", "t")
    assert [change.table.name for change in of[0].unsure([("d", "t"), ("d", "other")], AT)] == ["t"]


def test_temporary_tables_hide_captured_ones_in_their_session() -> None:
    """What is done to them is done to nobody's rows; in other sessions, and once they are dropped, it is."""
    of = followed("t")
    assert read(of, "CREATE TEMPORARY TABLE t (id INT)") == []
    for statement in ("INSERT INTO t VALUES (1)", "TRUNCATE t", "ALTER TABLE t ADD c INT", "RENAME TABLE t TO x"):
        assert read(of, statement) == [], statement
    assert read(of, "DELETE FROM x") == []
    assert read(of, "TRUNCATE t") == ["t!"]  # it is x by now
    assert read(of, "CREATE TEMPORARY TABLE t (id INT)") == []
    assert read(of, "TRUNCATE t", THEIRS) == ["t!"]
    assert read(of, "DROP TABLE t") == []
    assert read(of, "DROP TABLE t") == ["t!"]
    assert read(of, "CREATE TEMPORARY TABLE t (id INT)") == []
    of[0].restarted()
    assert read(of, "TRUNCATE t") == ["t!"]


def test_a_temporary_table_that_was_made_before_the_log_was_followed() -> None:
    """The server marks what is said of it: a captured table of the name is read, and not emptied."""
    of = followed("t")
    assert read(of, "TRUNCATE t", Session(7, specific=True)) == ["t"]
    assert judge("DROP TEMPORARY TABLE t", "d") == Temporary((("d", "t"),), made=False)


def test_a_new_table_that_cannot_be_captured_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    of, catalog = followed("t")

    def refuse(*_: Any) -> None:
        raise OperatorError("table d.k has no primary key", hint="ALTER TABLE")

    catalog.find, catalog.exists = refuse, lambda *_: True
    with caplog.at_level(logging.WARNING, "cdc"):
        assert read((of, catalog), "CREATE TABLE k (v INT)") == []
    assert "left out" in caplog.messages[0]
    assert not of.new
    catalog.find = lambda *_: object()
    assert list(of.of_statement(Filled(("d", "k")), AT, lambda: catalog)) == []
    assert of.new == {"d.k"}


def test_a_new_row_that_is_told_in_part_has_the_rest_of_the_old_one() -> None:
    """MariaDB's FULL_NODUP: it is whole, and no session is blamed."""
    (change,) = of_images(Op.UPDATE, (b"1", b"2", b"3"), (U, b"5", U), stops=True)
    assert (change.op, change.before, change.after) == (Op.UPDATE, (b"1", b"2", b"3"), (b"1", b"5", b"3"))


def test_rows_without_their_generated_columns_are_read_by_their_keys(caplog: pytest.LogCaptureFixture) -> None:
    """As MariaDB 11.8 logs what is updated: also where holes stop the connector. A row that is deleted has its key."""
    images: list[tuple[Row | None, Row | None]] = [((b"1", b"2", U), (b"7", b"2", U)), ((b"3", b"4", U), None)]
    generated = frozenset({"note"})
    update, delete = images[:1], images[1:]
    holes = Holes(stops=True)
    with caplog.at_level(logging.WARNING, "cdc"):
        read = list(holes.of_images(Op.UPDATE, table(), update, AT, partial=False, generated=generated))
    assert rows(read) == [(b"1", b"2", U), (b"7", b"2", U)]
    assert "generated columns" in caplog.text
    assert "on_hole" not in caplog.text
    (gone,) = holes.of_images(Op.DELETE, table(), delete, AT, partial=False, generated=generated)
    assert (gone.op, gone.before) == (Op.DELETE, (b"3", b"4", U))
    with pytest.raises(GapError):
        list(holes.of_images(Op.UPDATE, table(), update, AT, partial=False))


class Server:
    """A catalog as `Reach` asks for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tables = {("d", "t"): "BASE TABLE", ("d", "u"): "BASE TABLE", ("o", "p"): "BASE TABLE", ("o", "v"): "VIEW"}
        self.sees_triggers = True
        self.triggers: set[tuple[str, str]] = set()
        self.keys: dict[tuple[str, str], list[tuple[str, str]]] = {}
        self.denied: set[tuple[str, str]] = set()
        monkeypatch.setattr(reach.session, "texts", self._texts)

    def _texts(self, _connection: Any, _doing: str, statement: str, parameters: Any = ()) -> list[list[str]]:
        if statement.startswith("SHOW CREATE"):
            schema, _, name = statement.removeprefix("SHOW CREATE TABLE ").replace("`", "").partition(".")
            if (schema, name) in self.denied:
                raise OperatorError("no")
            lines = [
                f"  CONSTRAINT `c` FOREIGN KEY (`x`) REFERENCES `{parent[0]}`.`{parent[1]}` (`id`) ON DELETE CASCADE"
                for parent in self.keys.get((schema, name), [])
            ]
            return [[name, ",\n".join(["CREATE TABLE `x` (", *lines, ")"])]]
        if "TABLE_TYPE" in statement:
            return [[self.tables[parameters]]] if parameters in self.tables else []
        if "PRIVILEGE_TYPE" in statement:
            return [["1"]] if self.sees_triggers else []
        return [["x"]] if parameters in self.triggers else []

    def reach(self) -> Reach:
        return Reach(None, [("d", "t"), ("d", "u")])  # type: ignore[arg-type]


T, U_, P = ("d", "t"), ("d", "u"), ("o", "p")


def test_what_a_statement_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    assert server.reach().of([T]) == {T}
    assert server.reach().of([P]) == frozenset()
    assert server.reach().of([("mysql", "rds_heartbeat2")]) == frozenset()
    assert server.reach().of([("D", "T")]) == {T}, "a server may not mind the case of names"
    assert server.reach().of([("o", "v")]) is None, "a view may be of any table"
    assert server.reach().of([("o", "unknown")]) is None
    server.triggers = {P}
    assert server.reach().of([P]) is None
    assert server.reach().of([T]) == {T}
    server.sees_triggers = False
    assert server.reach().of([T]) is None
    assert server.reach().of([("mysql", "rds_heartbeat2")]) == frozenset()


def test_what_a_statement_reaches_by_foreign_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also through tables that are not captured, and not where one may not be looked at."""
    server = Server(monkeypatch)
    server.keys = {U_: [T]}
    assert server.reach().of([T]) == {T, U_}
    server.keys = {U_: [("o", "middle")], ("o", "middle"): [P]}
    assert server.reach().of([P]) == {U_}
    assert server.reach().of([T]) == {T}
    server.denied = {("o", "middle")}
    assert server.reach().of([P]) is None
