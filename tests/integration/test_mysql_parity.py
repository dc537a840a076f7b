"""What the binlog's decoder makes of real servers' bytes: a SELECT's text of every type, and every kind of event."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from cdc.model.change import UNCHANGED, Op
from connectors.mysql.binlog.events import (
    Event,
    FormatDescription,
    Gtid,
    MariadbGtid,
    MariadbGtidList,
    PartialUpdateRows,
    PreviousGtids,
    Query,
    Rows,
    RowsQuery,
    TableMap,
    XaPrepare,
    Xid,
)
from connectors.mysql.rows import row_images
from connectors.mysql.values import mapping
from tests.integration.mysql_parity import columns, compare, events
from tests.integration.mysql_raw import Server

pytestmark = pytest.mark.every_server  # each has types and events of its own

ANY = pytest.mark.parametrize("name", ["mysql", "mariadb"])
COUNTED = {"mysql": 2_300, "mariadb": 2_300}
"""Values compared, at least."""
REFUSED: dict[str, list[str]] = {"mysql": [], "mariadb": ["json"]}
"""MariaDB checks JSON to 32 levels only: the one literal that a server does not take."""


@ANY
def test_every_value_has_one_text_by_select_and_by_binlog(servers: Callable[[str], str], name: str) -> None:
    """Every type with its extremes, every character set; and one printed type by catalog and by log."""
    parity = compare(Server(servers(name)), name)
    assert parity.different == []
    assert parity.shapes == []
    assert [refused[0] for refused in parity.refused] == REFUSED[name]
    assert parity.compared >= COUNTED[name]


class Log:
    """A database of its own; statements run in one session, and the events they made."""

    def __init__(self, server: Server, database: str) -> None:
        self._server = server
        self._database = database

    def of(self, *statements: str, setup: tuple[str, ...] = ()) -> list[Event]:
        """Of the statements, not of `setup`; without what a dump begins with."""
        with closing(self._server.connect(database=self._database)) as connection, connection.cursor() as cursor:
            for statement in setup:
                cursor.execute(statement)
            start = self._server.end()
            for statement in statements:
                cursor.execute(statement)
        found = events(self._server, start)
        return [event for event in found if not (event.header.artificial or isinstance(event, FormatDescription))]

    def table(self, table: str) -> list[mapping.TableColumn]:
        with closing(self._server.connect(database=self._database)) as connection, connection.cursor() as cursor:
            return columns(cursor, table)


@contextmanager
def _log(url: str) -> Iterator[Log]:
    server, database = Server(url), f"events_{uuid.uuid4().hex[:10]}"
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {database} CHARACTER SET utf8mb4")
        yield Log(server, database)
        cursor.execute(f"DROP DATABASE {database}")


@pytest.fixture
def mysql_log(servers: Callable[[str], str]) -> Iterator[Log]:
    with _log(servers("mysql")) as log:
        yield log


@pytest.fixture
def mariadb_log(servers: Callable[[str], str]) -> Iterator[Log]:
    with _log(servers("mariadb")) as log:
        yield log


TABLE = "CREATE TABLE t (id int PRIMARY KEY, b text, v varchar(9) CHARACTER SET latin1, e enum('é','y'))"


def _changes(found: list[Event]) -> list[tuple[Op, row_images.Images]]:
    changes, by_id = [], {}
    for event in found:
        if isinstance(event, TableMap):
            by_id[event.table_id] = row_images.Reader(event)
        elif isinstance(event, Rows):
            changes += [(event.op, images) for images in by_id[event.table_id](event)]
    return changes


def test_a_compressed_transaction_is_its_events(mysql_log: Log) -> None:
    """Any session may switch it on."""
    statements = ("BEGIN", "INSERT INTO t VALUES (1, REPEAT('x', 5000), 'é', 'é')", "UPDATE t SET b = 'y'", "COMMIT")
    found = mysql_log.of(*statements, setup=("SET binlog_transaction_compression = ON", TABLE))
    assert [type(event) for event in found if not isinstance(event, Gtid)] == [
        Query,
        TableMap,
        Rows,
        TableMap,
        Rows,
        Xid,
    ]
    first, second = (b"1", b"x" * 5000, "é".encode(), "é".encode()), (b"1", b"y", "é".encode(), "é".encode())
    assert _changes(found) == [(Op.CREATE, (None, first)), (Op.UPDATE, (first, second))]


def test_compressed_events_of_mariadb_are_as_plain_ones(mariadb_log: Log) -> None:
    statements = (
        f"{TABLE} COMMENT '{'c' * 400}'",
        "INSERT INTO t VALUES (1, REPEAT('x', 5000), 'é', 'é')",
        "UPDATE t SET b = REPEAT('y', 400)",
        "DELETE FROM t",
    )
    try:
        found = mariadb_log.of(*statements, setup=("SET GLOBAL log_bin_compress = ON",))
    finally:
        mariadb_log.of("SET GLOBAL log_bin_compress = OFF")
    assert {165, 166, 167, 168} <= {event.header.type for event in found}
    assert statements[0] in [event.statement for event in found if isinstance(event, Query)]
    assert [op for op, _ in _changes(found)] == [Op.CREATE, Op.UPDATE, Op.DELETE]


def test_tagged_gtids_and_what_was_executed_before(mysql_log: Log) -> None:
    tag, other = f"t{uuid.uuid4().hex[:8]}", str(uuid.uuid4())
    found = mysql_log.of(
        f"SET gtid_next = 'AUTOMATIC:{tag}'",
        "INSERT INTO t (id) VALUES (1)",
        f"SET gtid_next = '{other}:{tag}:70000'",
        "INSERT INTO t (id) VALUES (2)",
        "SET gtid_next = 'AUTOMATIC'",
        "INSERT INTO t (id) VALUES (3)",
        "FLUSH BINARY LOGS",
        setup=(TABLE,),
    )
    first, second, third = [event for event in found if isinstance(event, Gtid)]
    assert (first.tag, first.gno, first.header.type) == (tag, 1, 42)
    assert second.gtid == f"{other}:{tag}:70000"
    assert (third.tag, third.header.type, third.uuid) == ("", 33, first.uuid)
    assert all(event.transaction_length and event.immediate_commit_us for event in (first, second, third))
    (previous,) = [event for event in found if isinstance(event, PreviousGtids)]
    assert f"{other}:{tag}:70000" in previous.text


def test_parts_of_documents_are_named_so_that_the_caller_can_stop(mysql_log: Log) -> None:
    found = mysql_log.of(
        "UPDATE d SET j = JSON_SET(j, '$.a', 2)",
        setup=(
            "CREATE TABLE d (id int PRIMARY KEY, j json)",
            "INSERT INTO d VALUES (1, '{\"a\": 1}')",
            "SET binlog_row_value_options = PARTIAL_JSON",
        ),
    )
    assert PartialUpdateRows in [type(event) for event in found]


@ANY
def test_a_minimal_image_says_what_it_has_not(servers: Callable[[str], str], name: str) -> None:
    with _log(servers(name)) as log:
        found = log.of(
            "UPDATE t SET v = 'z'",
            "DELETE FROM t",
            setup=(TABLE, "INSERT INTO t VALUES (1, 'b', 'v', 'y')", "SET SESSION binlog_row_image = MINIMAL"),
        )
    assert not any(event.whole for event in found if isinstance(event, Rows))
    nothing = (UNCHANGED,) * 3
    assert _changes(found) == [
        (Op.UPDATE, ((b"1", *nothing), (UNCHANGED, UNCHANGED, b"z", UNCHANGED))),
        (Op.DELETE, ((b"1", *nothing), None)),
    ]


XA = ("XA START 'a', 'b', 7", "INSERT INTO t (id) VALUES (1)", "XA END 'a', 'b', 7", "XA PREPARE 'a', 'b', 7")


def test_xa_of_mysql(mysql_log: Log) -> None:
    """Rows come at PREPARE, under a name; COMMIT is a statement of its own."""
    one_phase = ("XA START 'z'", "INSERT INTO t (id) VALUES (2)", "XA END 'z'", "XA COMMIT 'z' ONE PHASE")
    found = mysql_log.of(*XA, "XA COMMIT 'a', 'b', 7", *one_phase, setup=(TABLE,))
    prepared, at_once = [event for event in found if isinstance(event, XaPrepare)]
    assert prepared[1:] == (False, 7, b"a", b"b")
    assert at_once[1:] == (True, 1, b"z", b"")
    statements = [event.statement for event in found if isinstance(event, Query)]
    assert statements[:3] == ["XA START X'61',X'62',7", "XA END X'61',X'62',7", "XA COMMIT X'61',X'62',7"]


def test_xa_of_mariadb(mariadb_log: Log) -> None:
    found = mariadb_log.of(*XA, "XA COMMIT 'a', 'b', 7", setup=(TABLE,))
    prepared, completed = [event for event in found if isinstance(event, MariadbGtid)]
    assert (prepared.flags & 0xC0, prepared.xid) == (0x40, (7, b"a", b"b"))
    assert (completed.flags & 0xC0, completed.xid) == (0x80, (7, b"a", b"b"))
    assert [event[1:] for event in found if isinstance(event, XaPrepare)] == [(False, 7, b"a", b"b")]


def test_a_new_file_of_mariadb_begins_with_what_was_executed(mariadb_log: Log) -> None:
    found = mariadb_log.of("INSERT INTO t (id) VALUES (1)", "FLUSH BINARY LOGS", setup=(TABLE,))
    (executed,) = [event for event in found if isinstance(event, MariadbGtidList)]
    (inserted,) = [event for event in found if isinstance(event, MariadbGtid)]
    assert (inserted.domain, inserted.server_id, inserted.sequence) in executed.gtids
    assert (inserted.standalone, inserted.flags & 4, inserted.flags & 32) == (False, 4, 0)


def test_keys_visibility_and_statements_are_told(mysql_log: Log) -> None:
    found = mysql_log.of(
        "INSERT INTO k VALUES (1, 'b', 'c')",
        "INSERT INTO g (a) VALUES (1)",
        setup=(
            "CREATE TABLE k (a int, b varchar(50), c text, PRIMARY KEY (c(5), b(10), a))",
            "SET sql_generate_invisible_primary_key = ON",
            "CREATE TABLE g (a int, v int AS (a + 1), s int AS (a * 2) STORED, i int INVISIBLE DEFAULT 7)",
            "SET binlog_rows_query_log_events = ON",
        ),
    )
    keyed, generated = [event for event in found if isinstance(event, TableMap)]
    assert keyed.primary_key == ((2, 5), (1, 10), (0, 0))
    assert generated.primary_key == ((0, 0),)
    assert [(column.name, column.visible) for column in generated.columns] == [
        ("my_row_id", False),
        ("a", True),
        ("v", True),
        ("s", True),
        ("i", False),
    ]
    assert _changes(found)[1] == (Op.CREATE, (None, (b"1", b"1", b"2", b"2", b"7")))
    assert [event.statement for event in found if isinstance(event, RowsQuery)][1] == "INSERT INTO g (a) VALUES (1)"


@ANY
def test_ddl_is_text_whatever_character_set_it_came_in(servers: Callable[[str], str], name: str) -> None:
    with _log(servers(name)) as log:
        found = log.of("CREATE TABLE `größe` (id int PRIMARY KEY)", "DROP TABLE `größe`")
    statements = [event.statement for event in found if isinstance(event, Query)]
    assert statements[0] == "CREATE TABLE `größe` (id int PRIMARY KEY)"
    assert "`größe`" in statements[1]
