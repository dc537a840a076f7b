"""Which table rows of the log are of, as the log and the catalog change it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cdc.config.source_config import SourceConfig
from cdc.model.change import Change, Described, Op, Table
from cdc.model.errors import ChangedError, OperatorError
from cdc.model.table_schema import Description
from connectors.mysql.binlog import events, table_map
from connectors.mysql.binlog.events import TableColumn
from connectors.mysql.binlog.positions import BinlogPosition
from connectors.mysql.catalog.catalog import Captured
from connectors.mysql.rows import relations
from connectors.mysql.rows.relations import Followed
from connectors.mysql.statements.ddl import Altered, Dropped, Emptied, Filled, Granted
from connectors.mysql.statements.judgement import Judgement
from connectors.mysql.values import mapping
from tests.encoders.mysql import header

ID = TableColumn("id", table_map.LONGLONG, 0, nullable=False, unsigned=False)
NOTE = TableColumn("note", table_map.VARCHAR, 80, nullable=True, charset="utf8mb4")
AT = BinlogPosition("b.000001", 4)
NAME = ("d", "t")


def told(*columns: TableColumn) -> events.TableMap:
    return events.TableMap(header(19), 7, 1, *NAME, columns, ((0, 0),))


def captured(*columns: TableColumn, marks: tuple[str, ...] = ("1",)) -> Captured:
    return Captured(Table(*NAME, tuple(map(mapping.column, columns)), ("id",), marks), columns, 0)


def followed(*columns: TableColumn) -> Followed:
    return Followed(SourceConfig(type="mysql", url="mysql://x", tables=("d.t",)), (captured(*columns),))


def table(of: Followed, map_: events.TableMap) -> Table:
    found = of.table(map_, AT)
    assert found is not None
    return found[0]


def test_a_table_stays_one_object_while_the_log_describes_it_alike() -> None:
    """Its encoder hangs on it; also where the server has given it another number, and between two descriptions."""
    of, short, long = followed(ID), told(ID), told(ID, NOTE)
    first = table(of, short)
    assert table(of, short._replace(table_id=8)) is first
    assert table(of, told(ID)) is first
    assert [c.name for c in table(of, long).columns] == ["id", "note"]
    assert table(of, short) is first


def test_after_ddl_a_table_is_described_again() -> None:
    """At once, not at its next row: with what the catalog says of it by then, though its columns are the same."""
    of, map_ = followed(ID), told(ID)
    before = table(of, map_)
    catalog: Any = SimpleNamespace(find=lambda *_: captured(ID, marks=("2",)))
    (read,) = of.of_statement(Altered(NAME), AT, lambda: catalog)
    assert (type(read), read.table.marks) == (Change, ("2",))
    after = table(of, map_)
    assert (before.marks, after.marks) == (("1",), ("2",))
    assert list(of.of_statement(Altered(NAME), AT, lambda: catalog)) == [], "nothing new"
    longer: Any = SimpleNamespace(find=lambda *_: captured(ID, NOTE, marks=("2",)))
    (described,) = of.of_statement(Altered(NAME), AT, lambda: longer)
    assert (type(described), len(described.table.columns)) == (Described, 2)
    (others,) = of.of_statement(Filled(NAME), AT, lambda: catalog)
    assert isinstance(others, Change)
    assert (others.op, others.table.marks) == (Op.READ, ("2",))


def test_rows_of_a_table_without_a_key_are_read_again() -> None:
    """Two of them may share the key that it had, and what ends one would end both."""
    of = followed(ID, NOTE)
    known = of.table(told(ID, NOTE)._replace(primary_key=None), AT)
    assert known is not None
    assert known[1].whole() is None, "no fast way around it"
    for whole in (True, False):
        rows: Any = SimpleNamespace(whole=whole, op=Op.DELETE)
        (read,) = of.changes(rows, known, AT)
        assert (read.op, read.before, read.after, read.table.key) == (Op.READ, None, None, ("id",))


def test_rows_of_a_table_that_is_gone_by_now(caplog: pytest.LogCaptureFixture) -> None:
    """Which of its columns may be read nobody can tell: none that the catalog did not show; and it stops nothing."""
    config = SourceConfig(type="mysql", url="mysql://x", tables=("d.t",))
    told_of: list[bool | None] = [None, False]
    of = Followed(config, (captured(ID),), restricted=lambda *_: told_of.pop(0))
    assert [c.name for c in table(of, told(ID, NOTE)).columns] == ["id"]
    other = told(NOTE, ID)._replace(primary_key=((1, 0),))
    assert [c.name for c in table(of, other).columns] == ["note", "id"], "it is asked for again"
    assert "may not read" not in caplog.text


def test_a_key_that_is_gone_may_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next statement; then it goes on, and else the next session does, without the table."""
    of, refused = followed(ID), OperatorError("d.t has no primary key", hint="add one")
    table(of, told(ID))
    answers: list[Any] = [refused, refused, captured(ID, marks=("2",))]

    def find(*_: object) -> Captured:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, OperatorError):
            raise answer
        found: Captured = answer
        return found

    now_s = [0.0]
    monkeypatch.setattr(relations.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(relations.time, "sleep", lambda s: now_s.__setitem__(0, now_s[0] + s))
    catalog: Any = SimpleNamespace(find=find)
    (read,) = of.of_statement(Altered(NAME), AT, lambda: catalog)
    assert (type(read), read.table.marks) == (Change, ("2",))
    answers[:] = [refused]
    with pytest.raises(ChangedError, match="no primary key"):
        list(of.of_statement(Altered(NAME), AT, lambda: catalog))
    assert 5.0 <= now_s[0] < 6.0


@pytest.mark.parametrize("said", [Emptied((NAME,), dropped=True), Dropped("d")])
def test_a_table_that_is_dropped_is_told(said: Judgement, caplog: pytest.LogCaptureFixture) -> None:
    """Its rows are deleted; one that is made again by then is not gone."""
    of = followed(ID)
    table(of, told(ID))
    here: list[Captured] = []
    catalog: Any = SimpleNamespace(find=lambda *_: here[0] if here else None)
    (emptied,) = of.of_statement(said, AT, lambda: catalog)
    assert isinstance(emptied, Change)
    assert emptied.op is Op.TRUNCATE
    assert caplog.text.count("table d.t: it was dropped, and its rows are deleted in its topic") == 1
    here.append(captured(ID, marks=("2",)))
    assert len(list(of.of_statement(Emptied((NAME,), dropped=True), AT, lambda: catalog))) == 2
    assert caplog.text.count("it was dropped") == 1


def test_after_a_grant_what_may_be_read_is_compared() -> None:
    """A table that may not be seen any more is not passed over in silence; one that was dropped stops nothing."""
    of = followed(ID, NOTE)
    table(of, told(ID, NOTE))
    shown: dict[tuple[str, str], set[str]] = {NAME: {"id", "note"}}
    here: list[Captured] = [captured(ID, NOTE)]
    catalog: Any = SimpleNamespace(columns_shown=lambda _: shown, find=lambda *_: here[0] if here else None)
    assert list(of.of_statement(Granted(), AT, lambda: catalog)) == []
    shown[NAME], here[0] = {"id"}, captured(ID)
    (read,) = of.of_statement(Granted(), AT, lambda: catalog)
    assert (type(read), len(read.table.columns)) == (Change, 1)
    del shown[NAME]
    with pytest.raises(ChangedError, match="may not be read any more"):
        list(of.of_statement(Granted(), AT, lambda: catalog))
    here.clear()
    (emptied,) = of.of_statement(Emptied((NAME,), dropped=True), AT, lambda: catalog)
    assert isinstance(emptied, Change)
    assert emptied.op is Op.TRUNCATE
    assert list(of.of_statement(Granted(), AT, lambda: catalog)) == []


def test_a_key_that_the_log_changes_is_the_tables() -> None:
    of, map_ = followed(ID, NOTE), told(ID, NOTE)
    assert table(of, map_).key == ("id",)
    assert table(of, map_._replace(primary_key=((1, 0),))).key == ("note",)


def test_columns_that_no_statement_made(caplog: pytest.LogCaptureFixture) -> None:
    """`sql_log_bin = 0`: the catalog is asked. Where it has nothing new the log is behind it, and DDL is to come.

    By the table's new marks who writes the row has it read again.
    """
    config = SourceConfig(type="mysql", url="mysql://x", tables=("d.t",))
    altered: list[Captured] = [captured(ID)]
    catalog: Any = SimpleNamespace(find=lambda *_: altered[-1])
    of = Followed(config, (captured(ID),), catalog=lambda: catalog)

    def marks() -> tuple[str, ...]:
        return table(of, told(ID, NOTE)).marks

    table(of, told(ID))
    assert marks() == ("1",)
    table(of, told(ID))
    altered.append(captured(ID, NOTE, marks=("2",)))
    caplog.clear()
    assert (marks(), marks()) == (("2",), ("2",))
    assert caplog.text.count("without a statement on it") == 1


def test_columns_of_before_a_first_start_tell_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It reads its file from the beginning, with all that tables went through: `ALTER TABLE` stands there, too."""
    config = SourceConfig(type="mysql", url="mysql://x", tables=("d.t",))
    catalog: Any = SimpleNamespace(find=lambda *_: captured(ID, NOTE))
    of = Followed(config, (captured(ID, NOTE),), catalog=lambda: catalog)
    of.recall({NAME: [Description.of(captured(ID, NOTE).table)]})
    of.since = AT.commit + 1
    assert [c.name for c in table(of, told(ID)).columns] == ["id"], "what was not in the set yet is published"
    assert of.table(told(ID, NOTE), BinlogPosition(AT.file, AT.offset + 1))
    assert not caplog.text
