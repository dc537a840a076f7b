"""URLs of MySQL, what of a connection is checked, and drivers' errors in our terms; no secret anywhere."""

from __future__ import annotations

import gc
import io
import socket
import sys
from collections.abc import Callable, Iterator

import pymysql
import pytest

from cdc.model.errors import ConfigError, LoginError, OperatorError, RetryableError
from connectors.mysql.session import Address, address, connect_failed, translate, weakness
from connectors.triggers.mysql.rounds import _streamed as read_rounds
from snapshot.mysql.rows import stream_rows


def test_an_url_is_taken_apart() -> None:
    found = address("mysql://us%40er:p%3Ass%2F@db.example:3307/?ssl-ca=/ca.pem")
    assert (found.host, found.port, found.user, found.password) == ("db.example", 3307, "us@er", "p:ss/")
    assert (found.ssl_mode, found.ssl_ca) == ("verify_identity", "/ca.pem")
    assert found.endpoint == "db.example:3307"
    assert "p:ss" not in repr(found)
    assert address("mariadb://u@[::1]").ssl_mode == "preferred"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://h",
        "mysql://u:p@ss@h:1",
        "mysql://u:12#p@ss@h:1",
        "mysql://u:12#x@h:1",
        "mysql://h:port",
        "mysql://h?ssl_mode=maybe",
        "mysql://h?charset=x",
        "h:3306",
    ],
)
def test_an_url_that_is_wrong_is_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        address(url)
    assert "p@ss" not in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("url", "weak"),
    [
        ("mysql://h", None),
        ("mysql://h?ssl_mode=VERIFY_CA", "this host's"),
        ("mysql://h?ssl-mode=required", "who answers"),
        ("mysql://h?ssl_mode=preferred", "without encryption"),
        ("mysql://h?ssl_mode=disabled", "unencrypted"),
        ("mysql://127.0.0.1?ssl_mode=disabled", None),
    ],
)
def test_what_is_not_checked_is_said(url: str, weak: str | None) -> None:
    found = weakness(address(url))
    assert found is None if weak is None else weak in str(found)


@pytest.mark.parametrize(
    ("exc", "kind", "said"),
    [
        (pymysql.OperationalError(1045, "Access denied for user"), LoginError, "refuses user u"),
        (pymysql.OperationalError(1698, "Access denied"), LoginError, "refuses user u"),
        (pymysql.OperationalError(3118, "Account is locked."), LoginError, "refuses user u"),
        (pymysql.OperationalError(4151, "this account is locked"), LoginError, "refuses user u"),
        (pymysql.OperationalError(1862, "Your password has expired."), LoginError, "refuses user u"),
        (pymysql.OperationalError(3159, "insecure transport"), OperatorError, "no connection without TLS"),
        (pymysql.OperationalError(2059, "'parsec' not configured"), OperatorError, "the driver does not know"),
        (RuntimeError("'pynacl' package is required"), OperatorError, "PyNaCl"),
        (pymysql.OperationalError(1129, "Host is blocked"), OperatorError, "admits no connection"),
        (pymysql.OperationalError(1130, "Host is not allowed"), OperatorError, "admits no connection"),
        (pymysql.OperationalError(2003, "Can't connect"), RetryableError, "cannot be reached"),
        (pymysql.OperationalError(2013, "Lost connection"), RetryableError, "cannot be reached"),
        (pymysql.OperationalError(1040, "Too many connections"), RetryableError, "cannot be reached"),
        (
            pymysql.OperationalError(1203, "User u already has more than 1 connections"),
            RetryableError,
            "cannot be reached",
        ),
        (pymysql.OperationalError(1226, "User 'u' has exceeded the resource"), RetryableError, "cannot be reached"),
        (
            pymysql.OperationalError(3032, "The server is currently in offline mode"),
            RetryableError,
            "cannot be reached",
        ),
        (pymysql.OperationalError(2026, "SSL is required"), OperatorError, "no trusted TLS"),
        (RuntimeError("'cryptography' package is required"), OperatorError, "logging in"),
        (pymysql.OperationalError(1251, "old protocol"), OperatorError, "1251"),
    ],
)
def test_connecting_that_fails(exc: Exception, kind: type[Exception], said: str) -> None:
    found = connect_failed(Address("h", 3306, "u", "secret"), exc)
    assert type(found) is kind
    assert said in found.message
    assert "secret" not in str(found)
    assert kind is RetryableError or found.hint != translate(pymysql.OperationalError(1064), "x").hint or said == "1251"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1205, RetryableError),
        (1927, RetryableError),
        (1053, RetryableError),
        (1041, RetryableError),
        (3169, RetryableError),
        (9001, RetryableError),
        (1047, OperatorError),
        (1142, OperatorError),
        (1064, OperatorError),
    ],
)
def test_statements_that_fail(code: int, kind: type[Exception]) -> None:
    assert type(translate(pymysql.OperationalError(code, "words"), "reading")) is kind


def test_a_galera_node_that_is_not_in_its_cluster_is_waited_for() -> None:
    exc = pymysql.OperationalError(1047, "WSREP has not yet prepared node for application use")
    assert isinstance(translate(exc, "reading"), RetryableError)
    assert isinstance(connect_failed(Address("h", 3306, "u", "secret"), exc), RetryableError)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (1290, "The MySQL server is running with the --super-read-only option so it cannot execute this statement"),
        (1290, "The MariaDB server is running with the --read-only option so it cannot execute this statement"),
        (1836, "Running in read-only mode"),
    ],
)
def test_a_server_that_takes_no_changes_for_now_is_waited_for(code: int, words: str) -> None:
    error = translate(pymysql.OperationalError(code, words), "reading changes")
    assert isinstance(error, RetryableError)
    assert "read_only" in str(error.hint)


def test_what_other_options_prevent_does_not_pass() -> None:
    words = "The MySQL server is running with the --secure-file-priv option so it cannot execute this statement"
    assert isinstance(translate(pymysql.OperationalError(1290, words), "reading"), OperatorError)


@pytest.mark.parametrize("code", [1292, 1300, 1366, 1367, 1411, 1525, 1690, 1918, 3854])
def test_words_that_quote_a_value_are_left_out(code: int) -> None:
    """A virtual column ``UUID_TO_BIN(s)`` that was added over rows is computed as they are read."""
    words = "Incorrect string value: 'canary' for function uuid_to_bin"
    error = translate(pymysql.DataError(code, words), "reading table s.t")
    assert isinstance(error, OperatorError)
    assert error.message == f"reading table s.t: the server cannot compute a value, or convert it ({code})"
    assert "canary" not in str(error)


@pytest.mark.parametrize("code", [1205, 1213])
def test_a_lock_is_waited_for_at_the_first_start_too(code: int) -> None:
    """Not had in time, or in a deadlock: who holds it lets go of it."""
    error = translate(pymysql.err.OperationalError(code, "x"), "making triggers")
    assert isinstance(error, RetryableError)
    assert error.at_start


class Lost(pymysql.connections.Connection):  # type: ignore[misc]
    """Is lost once a statement was sent whose rows are read as they come."""

    def __init__(self) -> None:
        super().__init__(defer_connect=True)
        self._sock, self._other = socket.socketpair()
        self._rfile, self._current_timeout = io.BufferedReader(io.BytesIO()), None

    def query(self, sql: str, unbuffered: bool = False) -> int:
        assert unbuffered
        self._result = pymysql.connections.MySQLResult(self)
        self._result.unbuffered_active, self._result.field_count, self._result.converters = True, 1, [(None, None)]
        return 0


@pytest.mark.parametrize("stream", [read_rounds, lambda of, said: stream_rows(of, "reading", said)])
def test_a_connection_that_is_lost_is_told_once(
    stream: Callable[[Lost, str], Iterator[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library would read on when its cursor is collected as garbage, and show a traceback."""
    untold = list[object]()
    monkeypatch.setattr(sys, "unraisablehook", untold.append)
    with pytest.raises(RetryableError):
        list(stream(Lost(), "SELECT 1"))
    gc.collect()
    assert not untold
