"""Settings of a whole server, of init_connect and of a proxy in between: nothing that is read depends on them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import pymysql
import pytest
from pymysql.constants import ER

from cdc.model.errors import OperatorError
from connectors.mysql import session, session_settings
from snapshot.mysql.views import take_view
from tests.conftest import MYSQLS, MySQLDatabase
from tests.integration.mysql_servers import own_server
from tests.integration.mysql_user import MysqlUser
from tests.integration.mysql_work import SEQUENCE, connector_of, same

HOSTILE: Final = (
    ("sql_select_limit", "2"),
    ("max_join_size", "1"),
    ("sql_auto_is_null", "ON"),
    ("sql_buffer_result", "ON"),
    ("system_versioning_asof", "'2001-01-01 00:00:00'"),
    ("show_gipk_in_create_table_and_information_schema", "OFF"),
    ("query_cache_type", "ON"),
    ("autocommit", "OFF"),
    ("completion_type", "'RELEASE'"),
    ("transaction_isolation", "'READ-UNCOMMITTED'"),
    ("tx_isolation", "'READ-UNCOMMITTED'"),
    ("transaction_read_only", "ON"),
    ("tx_read_only", "ON"),
    (
        "sql_mode",
        "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,PIPES_AS_CONCAT,HIGH_NOT_PRECEDENCE,REAL_AS_FLOAT'",
    ),
    ("time_zone", "'+05:30'"),
    ("character_set_client", "latin1"),
    ("character_set_connection", "latin1"),
    ("character_set_results", "latin1"),
    ("collation_connection", "latin1_general_cs"),
    ("lc_messages", "'de_DE'"),
    ("lc_time_names", "'de_DE'"),
    ("sql_quote_show_create", "OFF"),
    ("max_sort_length", "8"),
    ("sort_buffer_size", "32768"),
    ("max_execution_time", "1"),
    ("max_statement_time", "0.05"),
    ("idle_transaction_timeout", "1"),
    ("idle_readonly_transaction_timeout", "1"),
    ("max_session_mem_used", "200000"),
    ("net_read_timeout", "1"),
    ("net_write_timeout", "1"),
    ("wait_timeout", "2"),
    ("interactive_timeout", "2"),
    ("lock_wait_timeout", "1"),
    ("information_schema_stats_expiry", "0"),
    ("sql_safe_updates", "ON"),
    ("big_tables", "ON"),
    ("group_concat_max_len", "4"),
    ("max_error_count", "0"),
    ("min_examined_row_limit", "100"),
    ("div_precision_increment", "0"),
    ("default_week_format", "3"),
    ("tmp_table_size", "1024"),
    ("session_track_gtids", "ALL_GTIDS"),
    ("session_track_transaction_info", "CHARACTERISTICS"),
)
"""What a server's configuration may say; what a server does not know is left out."""

INIT: Final = (
    "SET SESSION sql_select_limit = 1, time_zone = '-08:00', timestamp = 1000000000, sql_mode = 'ANSI_QUOTES'; "
    "SET NAMES latin1; START TRANSACTION"
)
UNKNOWN: Final = frozenset({ER.UNKNOWN_SYSTEM_VARIABLE, ER.INCORRECT_GLOBAL_LOCAL_VAR})


PLAIN: Final = ("time_zone", "collation_connection", "sql_safe_updates", "lc_messages")


class Owner(MySQLDatabase):
    """The server's owner, whose own sessions have plain settings."""

    def connect(self, **more: Any) -> pymysql.Connection[Any]:
        plain = (session_settings.assigned(name, session_settings.SETTINGS[name]) for name in PLAIN)
        connection = super().connect(**more)
        with connection.cursor() as cursor:
            cursor.execute(session_settings.FIRST)
            cursor.execute(f"SET SESSION completion_type = 0, {', '.join(plain)}")
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ WRITE")
        return connection


@contextlib.contextmanager
def servers_of_ones_own(kind: str, folder: Path) -> Iterator[Owner]:
    with own_server(kind, folder) as own:
        yield Owner(own.server.url, "dev")


def set_globally(owner: MySQLDatabase, name: str, value: str) -> bool:
    """Whether the server knows the setting, and has it now."""
    try:
        owner.execute(f"SET GLOBAL {name} = {value}")
    except pymysql.MySQLError as exc:
        if exc.args[0] in UNKNOWN:
            return False
        raise
    return True


TABLES: Final = (
    "CREATE TABLE many (id INT PRIMARY KEY, n INT)",
    f"INSERT INTO many SELECT x, x FROM {SEQUENCE.format(last=900)}",
    "CREATE TABLE words (k VARCHAR(700) PRIMARY KEY, v VARCHAR(20))",
    f"INSERT INTO words SELECT CONCAT(REPEAT('ä', 600), 900 - x), CONCAT('é\\\\', x) FROM {SEQUENCE.format(last=900)}",
    """CREATE TABLE kinds (id INT PRIMARY KEY, c CHAR(9), f FLOAT, d DOUBLE(9,3), b BIT(9), ts TIMESTAMP(3) NULL,
    dt DATETIME(6), z INT(9) ZEROFILL, u BIGINT UNSIGNED, m DECIMAL(20,6), e ENUM('ö','a b'), t TIME(2))""",
    """INSERT INTO kinds VALUES (1, 'a ', 0.1, 1.5, b'101', '2024-02-29 12:00:00.125', '2024-02-29 12:00:00.999999', 7,
    18446744073709551615, 1.234567, 'ö', '-12:00:00.25'), (2, '', 0, 0, 0, NULL, NULL, 0, 0, 0, 'a b', NULL)""",
)


@pytest.mark.parametrize("kind", MYSQLS)
def test_hostile_settings_of_a_server_change_nothing(kind: str, tmp_path: Path, prefix: str, kafka: str) -> None:
    """Snapshot and stream under them give what a SELECT without them gives, and nothing is read again."""
    with servers_of_ones_own(kind, tmp_path) as owner:
        owner.execute(*TABLES)
        before = connector_of(tmp_path, f"{prefix}a", owner, kafka)
        after = connector_of(tmp_path, f"{prefix}b", owner, kafka, snapshot={"chunk_rows": 100})
        before.catch_up()
        known = [name for name, value in HOSTILE if set_globally(owner, name, value)]
        assert len(known) > 30
        owner.execute(f'SET GLOBAL init_connect = "{INIT}"')
        owner.execute(
            "UPDATE many SET n = n + 1 WHERE id < 500", "DELETE FROM many WHERE id > 800", "UPDATE words SET v = 'ü'",
            "UPDATE kinds SET ts = ts + INTERVAL 1 DAY, c = 'b  '",
        )  # fmt: skip
        said = before.catch_up() + after.catch_up()
        assert "again" not in said
        for table in ("many", "words"):
            same(before, owner, table)
            same(after, owner, table)
        assert before.fold("dev.kinds") == after.fold("dev.kinds")
        ((ts, c),) = owner.rows("SELECT DATE_FORMAT(ts, '%Y-%m-%dT%H:%i:%s.%fZ'), c FROM kinds WHERE id = 1")
        assert [(row["ts"], row["c"]) for row in after.fold("dev.kinds").values() if row["id"] == 1] == [(ts, c)]
        checked = after.here("check", "FILE")
        assert checked.returncode == 0, checked.stdout
        assert after.here("status", "FILE").returncode == 0


@pytest.mark.every_server  # each has settings of its own
@pytest.mark.parametrize("kind", MYSQLS)
def test_each_setting_is_set_and_read_back(kind: str, tmp_path: Path) -> None:
    """One at a time, so that none hides behind another; and what no session can set is named."""
    with servers_of_ones_own(kind, tmp_path) as owner:
        login = session.address(MysqlUser(owner.url).url + "?ssl_mode=disabled")
        wanted = session_settings.SETTINGS
        for name, value in HOSTILE:
            ((default,),) = owner.rows(f"SELECT @@GLOBAL.{name}") if set_globally(owner, name, value) else ((None,),)
            if default is None:
                continue
            with closing(session.connect(login)) as connection:
                found = dict(session.texts(connection, "looking", "SHOW SESSION VARIABLES"))
            if name in wanted:
                assert session_settings._same(found[name], wanted[name]), name
            assert all(session_settings._same(found[of], wanted[of]) for of in wanted if of in found), name
        owner.execute("SET GLOBAL max_allowed_packet = 1024")
        with pytest.raises(OperatorError, match="max_allowed_packet is 1024") as caught:
            session.connect(login)
        assert caught.value.hint == "SET GLOBAL max_allowed_packet = 67108864"
        owner.execute("SET GLOBAL max_allowed_packet = 67108864", "SET GLOBAL init_connect = 'SET nothing_known = 1'")
        with pytest.raises(OperatorError, match="as its init_connect fails") as caught:
            session.connect(login)
        assert "init_connect" in str(caught.value.hint)


class Forgetful:
    """A proxy that says OK to every SET and forgets it, as one does that shares sessions out by statement."""

    def __init__(self, port: int) -> None:
        self.other: pymysql.Connection[Any] | None = None
        """Gets what follows START TRANSACTION, where there is one; then SET is not forgotten."""
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                threading.Thread(target=self._answer, args=(server, client), daemon=True).start()
                threading.Thread(target=self._ask, args=(client, server), daemon=True).start()

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while got := server.recv(1 << 16):
                client.sendall(got)

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError), client.makefile("rb") as read:
            while head := read.read(4):
                packet = read.read(int.from_bytes(head[:3], "little"))
                if self.other is not None and packet[:6] == b"\3START":
                    server = self.other._sock
                    threading.Thread(target=self._answer, args=(server, client), daemon=True).start()
                if self.other is None and head[3] == 0 and packet[1:].lstrip().upper().startswith(b"SET"):
                    client.sendall(b"\7\0\0\1\0\0\0\2\0\0\0")
                else:
                    server.sendall(head + packet)
            server.close()

    def close(self) -> None:
        self._listener.close()


def test_a_proxy_that_drops_what_a_session_sets_is_found_out(mysql_database: MySQLDatabase) -> None:
    """By name, with what was asked for and what was found; nothing is read through it."""
    login = MysqlUser(mysql_database.url)
    at = session.address(login.url + "?ssl_mode=disabled")
    with closing(Forgetful(at.port)) as proxy:
        through = session.address(login.url.replace(f":{at.port}", f":{proxy.port}") + "?ssl_mode=disabled")
        with pytest.raises(OperatorError, match=r"lock_wait_timeout = \d+ where 10 was asked for") as caught:
            session.connect(through)
    assert "sql_mode = " in caught.value.message
    assert "the server's own address" in str(caught.value.hint)


def test_a_proxy_that_changes_the_session_is_found_out_by_the_view(mysql_database: MySQLDatabase) -> None:
    """What is set and read back in one session is not there in the other, which would answer the SELECT."""
    login = MysqlUser(mysql_database.url)
    at = session.address(login.url + "?ssl_mode=disabled")
    with closing(Forgetful(at.port)) as proxy, closing(mysql_database.connect()) as other:
        proxy.other = other
        through = session.address(login.url.replace(f":{at.port}", f":{proxy.port}") + "?ssl_mode=disabled")
        connection = session.connect(through)
        with pytest.raises(OperatorError, match=r"sql_mode = .* where the empty text was set"):
            take_view([connection], [], lambda: session.connect(through), over=lambda: False)
        session.break_off(connection)
