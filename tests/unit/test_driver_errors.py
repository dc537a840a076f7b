"""Law: whatever a driver raises where it is called becomes an error of ours, with a hint; none passes as it is."""

from __future__ import annotations

import errno
import inspect
import io
import socket
import sqlite3
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Self, cast

import confluent_kafka
import kafka.errors
import psycopg
import psycopg2
import psycopg2.errorcodes
import psycopg2.errors
import pymysql
import pytest
from confluent_kafka import KafkaException
from psycopg2._psycopg import sqlstate_errors

from cdc.cli.inspecting.tail import _coloured
from cdc.encode.topic_contents.live_keys import LiveKeys
from cdc.machine import temporary_files
from cdc.machine.temporary_files import TemporaryDatabase, on_temporary_disk
from cdc.machine.tls import says_cut, was_cut
from cdc.model.errors import CdcError, OperatorError, RetryableError
from connectors.mysql import session as mysql
from connectors.postgres import session as postgres
from connectors.postgres.catalog.catalog import Catalog
from connectors.postgres.slot import replication_stream
from sinks.client import failures
from sinks.client.connection import Connection, ConnectionConfig, LostError
from sinks.topics.records import read_back
from sinks.topics.topics import Topics
from snapshot.mysql.rows import stream_rows
from snapshot.postgres import snapshotter as postgres_snapshot
from spark_apply.verify.differences import RowComparison

SECRET = "row value 4711"
"""Stands for a value in an exception's words: it never reaches a message of ours."""


def _classes(module: Any, base: type[BaseException]) -> list[type[Exception]]:
    return [c for c in vars(module).values() if inspect.isclass(c) and issubclass(c, base)]


def _os_errors() -> list[Exception]:
    kinds = (
        errno.ENOSPC, errno.EROFS, errno.EMFILE, errno.ECONNRESET, errno.ETIMEDOUT, errno.EPIPE, errno.EBADF,
        errno.EACCES, errno.EIO, errno.EDQUOT,
    )  # fmt: skip
    return [OSError(kind, errno.errorcode[kind]) for kind in kinds]


def _tls_errors() -> list[Exception]:
    return [
        ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"),
        ssl.SSLError(1, "[SSL: TLSV1_ALERT_INTERNAL_ERROR] tlsv1 alert internal error"),
        ssl.SSLEOFError(8, "EOF occurred in violation of protocol"),
        ssl.SSLZeroReturnError(6, "TLS/SSL connection has been closed (EOF)"),
        ssl.SSLSyscallError(5, "Some I/O error occurred"),
        ssl.SSLCertVerificationError(1, "certificate verify failed"),
    ]


def _odd() -> list[Exception]:
    return [SystemError("error return without exception set"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, SECRET)]


def _of_postgres() -> Iterator[Exception]:
    """Give every class of psycopg2, and an error of every SQLSTATE it knows."""
    for kind in [psycopg2.Warning, *_classes(psycopg2, psycopg2.Error)]:
        yield kind(SECRET)
    for name, code in vars(psycopg2.errorcodes).items():
        if name.isupper() and isinstance(code, str) and len(code) == len("00000"):
            error = sqlstate_errors.get(code, psycopg2.DatabaseError)(SECRET)
            error.__setstate__({"pgcode": code, "pgerror": SECRET})  # as the server's answer sets it
            yield error
    yield from (*_os_errors(), *_tls_errors(), *_odd(), ValueError(SECRET))


def _of_libpq() -> Iterator[Exception]:
    yield from (kind(SECRET) for kind in [psycopg.Warning, *_classes(psycopg, psycopg.Error)])
    yield from (kind(SECRET) for kind in _classes(psycopg.errors, psycopg.Error))
    yield from (*_os_errors(), *_tls_errors(), SystemError("null argument"))


def _of_mysql() -> Iterator[Exception]:
    """Give every class of PyMySQL, with each number it knows, and what its reading of a lost connection raises."""
    codes = {0, *(v for m in (pymysql.constants.CR, pymysql.constants.ER) for v in vars(m).values() if type(v) is int)}
    for kind in _classes(pymysql.err, pymysql.err.MySQLError):
        yield from (kind(), kind("words"), kind(2013, "words"), kind(1064, "words"))
    yield from (pymysql.err.OperationalError(code, "words") for code in sorted(codes))
    yield from (*_os_errors(), *_tls_errors(), *_odd(), ValueError(SECRET), struct.error(SECRET), IndexError(SECRET))
    yield from (AttributeError(SECRET), TypeError(SECRET), AssertionError(SECRET), RuntimeError("no cryptography"))


def _of_kafka() -> Iterator[Exception]:
    """Give every class of kafka-python, and an error of librdkafka's with each code: retriable, fatal, plain."""
    for kind in _classes(kafka.errors, kafka.errors.KafkaError):
        yield kind({}) if kind is kafka.errors.LogTruncationError else kind()
    known = confluent_kafka.KafkaError
    for name in dir(known):
        code = getattr(known, name)
        if type(code) is int:
            for fatal, retriable in ((False, False), (True, False), (False, True)):
                yield KafkaException(known(code, "words", fatal, retriable, False))
    yield from (KafkaException("words"), KafkaException(), BufferError("Local: Queue full"))
    yield from (*_os_errors(), *_tls_errors(), *_odd(), ValueError(SECRET), KeyError(SECRET), RuntimeError(SECRET))


def _of_files() -> Iterator[Exception]:
    yield from (kind("words") for kind in _classes(sqlite3, sqlite3.Error))
    yield sqlite3.Warning("words")
    for name in dir(sqlite3):
        if name.startswith("SQLITE_") and type(getattr(sqlite3, name)) is int:
            error = sqlite3.OperationalError("words")
            error.sqlite_errorcode, error.sqlite_errorname = getattr(sqlite3, name), name
            yield error
    yield from _os_errors()


class _Raising:
    """Stands for a driver's object: whatever is asked of it, it raises, or gives itself in a `with`."""

    closed = 1
    encoding = "UTF8"

    def __init__(self, error: Exception, *quiet: str) -> None:
        self._error, self._quiet = error, quiet

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def get_parameter_status(self, _name: str) -> str:
        return "UTF8"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*_: object, **__: object) -> Any:
            if name in self._quiet:
                return self
            raise self._error

        return call


def _judged(seam: Callable[[Exception], object], errors: Iterator[Exception]) -> None:
    """Raise each error at the seam: only ours come out, of a kind that says who acts, with a hint and no value."""
    for error in errors:
        with pytest.raises(CdcError) as caught:
            seam(error)
        assert isinstance(caught.value, (RetryableError, OperatorError)), error
        assert caught.value.hint, (error, caught.value)
        assert SECRET not in str(caught.value), (error, caught.value)


def _raise(error: Exception) -> Callable[..., Any]:
    def call(*_: object, **__: object) -> Any:
        raise error

    return call


def test_a_sessions_statements() -> None:
    def seam(error: Exception) -> object:
        return Catalog(cast("Any", _Raising(error, "cursor"))).rows("asking", "SELECT 1")

    _judged(seam, _of_postgres())


def test_a_sessions_copy() -> None:
    def seam(error: Exception) -> object:
        copied = psycopg2.sql.SQL("COPY t TO STDOUT")
        return Catalog(cast("Any", _Raising(error, "cursor"))).copy("reading", copied, io.BytesIO())

    _judged(seam, _of_postgres())


def test_a_key_that_no_row_can_have_is_not_a_connection_that_broke() -> None:
    """psycopg2 refuses a NUL itself: tried again, it would hold up all tables that are to be read again."""
    driver = ValueError("A string literal cannot contain NUL (0x00) characters.")
    assert isinstance(postgres.translate(driver, "reading table s.t"), OperatorError)
    assert isinstance(postgres.translate(ValueError("another"), "reading table s.t"), RetryableError)


def test_a_snapshots_beginning() -> None:
    def seam(error: Exception) -> None:
        postgres_snapshot._begin(cast("Any", _Raising(error)), None)

    _judged(seam, _of_postgres())
    _judged(lambda e: postgres_snapshot._begin(cast("Any", _Raising(e, "set_session")), "view"), _of_postgres())


def test_a_connection_that_postgresql_does_not_give(monkeypatch: pytest.MonkeyPatch) -> None:
    def seam(error: Exception) -> object:
        monkeypatch.setattr(psycopg2, "connect", _raise(error))
        return postgres.connect({"host": "127.0.0.1"})

    _judged(seam, (e for e in _of_postgres() if not isinstance(e, psycopg2.Error) or SECRET not in str(e)))


def test_a_walsender(monkeypatch: pytest.MonkeyPatch) -> None:
    def at(step: Callable[[Any], object], *quiet: str) -> Callable[[Exception], object]:
        def seam(error: Exception) -> object:
            stream: Any = object.__new__(replication_stream.ReplicationConnection)
            stream._pg, stream._endpoint, stream._over = _Raising(error, *quiet), "db", False
            stream._streaming, stream._sent_at_s, stream._written, stream._flushed = True, -1e9, 0, 0
            stream._silent_s, stream._patience_s, stream._asked_at_s = 1.0, float("inf"), None
            return step(stream)

        return seam

    def connect(error: Exception) -> object:
        monkeypatch.setattr(replication_stream.pq, "PGconn", _Raising(error))
        return replication_stream.ReplicationConnection({"host": "127.0.0.1"})

    _judged(at(lambda s: s.query("SELECT 1", "asking")), _of_libpq())
    _judged(at(lambda s: s.query("SELECT 1", "asking"), "send_query", "flush"), _of_libpq())
    _judged(at(lambda s: s.receive()), _of_libpq())
    _judged(at(lambda s: s.status()), _of_libpq())
    _judged(at(lambda s: s.status(), "put_copy_data"), _of_libpq())
    _judged(at(lambda s: s.receive_changes(lambda get, _: get(1), 1)), _of_libpq())
    _judged(at(lambda s: s.receive_transactions(lambda get, *_: get(1), 0, 1)), _of_libpq())
    _judged(connect, (e for e in _of_libpq() if not isinstance(e, psycopg.Error)))


def test_a_mysql_statement_and_a_stream_of_rows() -> None:
    _judged(lambda e: mysql.rows(cast("Any", _Raising(e, "cursor")), "asking", "SELECT 1"), _of_mysql())

    def seam(error: Exception) -> object:
        connection: Any = _Raising(error, "cursor")
        connection._result = None
        return list(stream_rows(connection, "reading", "SELECT 1"))

    _judged(seam, _of_mysql())


def test_a_connection_that_mysql_does_not_give(monkeypatch: pytest.MonkeyPatch) -> None:
    def seam(error: Exception) -> object:
        monkeypatch.setattr(pymysql, "connect", _raise(error))
        return mysql.connect(mysql.address("mysql://u:p@127.0.0.1:1/"))

    _judged(seam, (e for e in _of_mysql() if SECRET not in str(e)))


def test_kafkas_two_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(error: Exception) -> None:
        raise failures.translate(error, "broker", "reading")

    def reading(error: Exception) -> object:
        monkeypatch.setattr(read_back, "Consumer", _raise(error))
        return list(read_back.read_to_end("broker", {}, "topic", "read_committed"))

    def asking(step: Callable[[Topics], object]) -> Callable[[Exception], object]:
        def seam(error: Exception) -> object:
            topics: Any = object.__new__(Topics)
            topics._servers, topics._admin = "broker", _Raising(error)
            return step(topics)

        return seam

    _judged(judged, _of_kafka())
    _judged(reading, _of_kafka())
    _judged(asking(lambda topics: topics.names()), _of_kafka())
    _judged(asking(lambda topics: topics.broker()), _of_kafka())
    _judged(asking(lambda topics: topics.existing(["t"])), _of_kafka())


def test_files_that_are_only_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    def inside(error: Exception) -> None:
        with on_temporary_disk("a transaction"):
            raise error

    def made(error: Exception) -> object:
        monkeypatch.setattr(temporary_files.sqlite3, "connect", _raise(error))
        return TemporaryDatabase("keys", "")

    def used(error: Exception) -> object:
        database: Any = object.__new__(TemporaryDatabase)
        database._what, database._db = "keys", _Raising(error)
        return list(database.rows("SELECT 1"))

    _judged(inside, _of_files())
    _judged(made, _of_files())
    _judged(used, _of_files())


def test_a_full_folder_passes_and_a_closed_one_does_not() -> None:
    with LiveKeys() as keys:
        keys._db.run("PRAGMA max_page_count = 2")
        with pytest.raises(RetryableError, match="does not fit into"):
            keys.put(b"k" * 100_000)
    with closing(RowComparison()) as found:
        found._db.run("PRAGMA max_page_count = 3")
        with pytest.raises(RetryableError, match="does not fit into"):
            found.add_source(cast("Any", [("k" * 100_000, b"", "")]))
    with pytest.raises(OperatorError, match="cannot be kept in"), on_temporary_disk("a transaction of the log"):
        raise OSError(errno.EROFS, "Read-only file system")


@pytest.fixture
def cutting() -> Iterator[int]:
    """Serve connections that end once a TLS handshake has begun, as an overloaded balancer ends them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        over = threading.Event()

        def cut() -> None:
            while not over.is_set():
                try:
                    client, _ = server.accept()
                except TimeoutError:
                    continue
                with client:
                    client.recv(64)

        thread = threading.Thread(target=cut, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        over.set()
        thread.join()


def test_a_tls_handshake_that_is_cut_passes(cutting: int) -> None:
    config = ConnectionConfig(client_id="t", answer_s=5, options={"security_protocol": "SSL"})
    with pytest.raises(LostError, match=r"ended during the TLS handshake|reset"):
        Connection("127.0.0.1", cutting, config)
    with pytest.raises(RetryableError):
        postgres.connect(
            {"host": "127.0.0.1", "port": str(cutting), "sslmode": "require", "user": "u", "connect_timeout": "5"}
        )
    hung_up = pymysql.OperationalError(2003, "Can't connect to MySQL server")
    hung_up.original_exception = ssl.SSLEOFError(8, "EOF occurred in violation of protocol")
    assert isinstance(mysql.connect_failed(mysql.address("mysql://u:p@db.example/"), hung_up), RetryableError)


def test_a_cut_is_told_from_a_refusal() -> None:
    assert [was_cut(error) for error in _tls_errors()] == [False, True, True, True, True, False]
    assert says_cut("SSL error: unexpected eof while reading")
    assert says_cut("SSL SYSCALL error: Connection reset by peer")
    assert says_cut("ssl://certificates-kafka:9093/bootstrap: SSL handshake failed: Disconnected")  # its name
    assert not says_cut("SSL error: certificate verify failed: unexpected eof while reading")
    assert not says_cut("SSL error: tlsv1 alert unknown ca")


def test_a_terminal_shows_records_that_no_connector_has_written() -> None:
    for value in (5, "text", ["a"], {}, {"op": 7, "after": [1]}):
        assert "t/0@1" in _coloured({"topic": "t", "partition": 0, "offset": 1, "key": None, "value": value})
