"""Connecting to PostgreSQL: what a URL becomes, what an error means, and no password anywhere."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import psycopg2
import pytest
from psycopg2 import errors

from cdc.model.errors import CdcError, ConfigError, LoginError, OperatorError, RetryableError
from connectors.postgres import session, settings
from connectors.postgres.catalog import server
from connectors.postgres.refused_logins import meaning
from connectors.postgres.session import connect, endpoint, identifier, of_sqlstate, parameters, translate

SECRET = "s3cr3t"


def _parameters(rest: str) -> dict[str, str]:
    return parameters(f"postgresql://u:{SECRET}@{rest}", "cdc test")


@pytest.mark.parametrize(
    ("rest", "sslmode", "root"),
    [
        ("db.example/d", "verify-full", "system"),
        ("10.0.0.7:5433/d", "verify-full", "system"),
        ("db.example/d?sslmode=verify-full", "verify-full", "system"),
        ("db.example/d?sslrootcert=/ca.pem", "verify-full", "/ca.pem"),
        ("db.example/d?sslmode=require", "require", None),
        ("db.example/d?sslmode=verify-ca", "verify-ca", None),
        ("db.example/d?sslmode=disable", "disable", None),
        ("localhost/d", None, None),
        ("127.0.0.1/d", None, None),
        ("[::1]/d", None, None),
        ("%2Fvar%2Frun%2Fpostgresql/d", None, None),
        ("localhost/d?sslmode=require", "require", None),
        ("localhost,db.example/d", "verify-full", "system"),
        ("localhost/d?hostaddr=10.0.0.7", "verify-full", "system"),
        ("localhost.example/d", "verify-full", "system"),
    ],
)
def test_a_server_elsewhere_is_verified_unless_the_url_says_otherwise(
    rest: str, sslmode: str | None, root: str | None
) -> None:
    """On this machine nothing is asked for; elsewhere who answers is checked against the system's authorities."""
    found = _parameters(rest)
    assert (found.get("sslmode"), found.get("sslrootcert")) == (sslmode, root)


@pytest.mark.parametrize(
    ("rest", "kind"),
    [
        ("localhost,localhost:5433/d", "read-write"),
        ("/d?host=localhost,127.0.0.1", "read-write"),
        ("localhost,localhost/d?target_session_attrs=any", "any"),
        ("localhost/d", None),
    ],
)
def test_of_several_hosts_the_primary_is_taken(rest: str, kind: str | None) -> None:
    """At the first that answers, one connection of a connector's could end at a standby, behind the others."""
    assert _parameters(rest).get("target_session_attrs") == kind


def test_every_session_prints_values_the_same_way() -> None:
    """COPY and the log give the same bytes because these are set; a user's own options come first, so ours win."""
    found = _parameters("localhost/d?options=-c%20DateStyle%3DGerman&client_encoding=LATIN1&application_name=x")
    assert found["options"].startswith("-c DateStyle=German -c DateStyle=ISO -c ")
    escaped = {name: value.replace(" ", "\\ ") for name, value in settings.SETTINGS.items()}
    assert all(f"-c {name}={value}" in found["options"] for name, value in escaped.items())
    assert (found["client_encoding"], found["application_name"]) == ("UTF8", "cdc test")


@pytest.mark.parametrize(
    "url",
    [
        f"mysql://u:{SECRET}@h/d",
        f"host=h password={SECRET}",
        f"postgresql://u:{SECRET}%zz@h/d",
        f"postgresql://u:p@{SECRET}@h/d",  # libpq would call the host p@…
        f"postgresql://u:p/{SECRET}@h/d",  # and here the database
        f"postgresql://u:12/{SECRET}@h/d",
        f"postgresql://u:{SECRET}@h/d?nosuchoption=1",
        f"postgresql://u:{SECRET}/d",  # the @ is missing: a port, to libpq
        f"postgresql://u:{SECRET}@h:99999/d",
        f"postgresql://u:{SECRET}@::1:5432/d",
    ],
)
def test_a_url_that_is_none_is_refused_without_being_repeated(url: str) -> None:
    """The commonest mistake is a password that is not percent-encoded: the hint says how, the message not what."""
    with pytest.raises(ConfigError) as caught:
        parameters(url, "cdc test")
    assert SECRET not in str(caught.value)
    assert "postgresql://user:" in (caught.value.hint or "")


def test_a_parameter_that_libpq_does_not_have_is_named() -> None:
    """It was said that a password is to be percent-encoded."""
    with pytest.raises(ConfigError) as caught:
        parameters(f"postgresql://u:{SECRET}@h/d?sslmod=require", "cdc test")
    assert str(caught.value).startswith("source.url: libpq has no parameter sslmod")
    assert str(caught.value.hint).endswith("/database?sslmode=…")


def test_a_value_that_libpq_does_not_take_is_no_server_that_is_away() -> None:
    """Nobody waits for it."""
    error = meaning("h:5432/d", _parameters("h/d"), 'invalid sslmode value: "requier"\n')
    assert (type(error), error.message) == (OperatorError, 'source.url: invalid sslmode value: "requier"')


def test_an_at_sign_may_stand_encoded_or_behind_the_question_mark() -> None:
    """Only what libpq would misread is refused."""
    found = parameters("postgresql://u%40corp:p%2Fw%40x@localhost/d?application_name=a@b", "cdc test")
    assert (found["user"], found["password"], found["dbname"]) == ("u@corp", "p/w@x", "d")


def test_a_place_has_no_secret() -> None:
    """Host, port and database: what a message may say."""
    assert endpoint(_parameters("db.example:5433/d")) == "db.example:5433/d"
    assert endpoint(_parameters("db.example?hostaddr=10.0.0.7")) == "10.0.0.7:5432/u"
    assert SECRET not in endpoint(_parameters("h/d"))


FAILED = 'connection to server at "h" (10.0.0.7), port 5432 failed: '
NOBODY, HBA = (
    "must be superuser or replication role to start walsender",
    'no pg_hba.conf entry for host "1.2.3.4", user "u"',
)
SLOTS = 'number of requested standby connections exceeds "max_wal_senders" (currently 10)'
LOGIN = [
    ('FATAL:  password authentication failed for user "u"', "refuses the password of user u", "ALTER ROLE"),
    ("fe_sendauth: no password supplied", "and there is none", "${NAME}"),
    ('FATAL:  role "u" does not exist', "role u does not exist", "CREATE ROLE"),
    ('FATAL:  role "u" is not permitted to log in', "role u may not log in", 'ALTER ROLE "u" LOGIN'),
    ('FATAL:  Peer authentication failed for user "u"', "refuses user u: FATAL: Peer", "pg_hba_file_rules"),
    ('FATAL:  PAM authentication failed for user "u"', "refuses user u: FATAL: PAM", "token"),
]
OPERATOR = [
    ('FATAL:  database "d" does not exist', "that database does not exist", "psql -h h -p 5432 -U u -d postgres -l"),
    (f"FATAL:  {NOBODY}", "user u may not replicate", 'ALTER ROLE "u" REPLICATION'),
    ("FATAL:  permission denied to start WAL sender\nDETAIL:  Only roles …", "may not replicate", "REPLICATION"),
    (f"FATAL:  {HBA}, no encryption", "admits no connection of user u", "hostssl d u"),
    (f"FATAL:  {HBA}, no encryption", "pg_hba.conf", "1.2.3.4/32"),
    ('FATAL:  pg_hba.conf rejects connection for host "::1", user "u"', "admits no connection of user u", "::1/128"),
    ('FATAL:  permission denied for database "d"', "may not connect", 'GRANT CONNECT ON DATABASE "d" TO "u"'),
    ("FATAL:  connection requires a valid client certificate", "asks for a certificate of user u", "sslcert"),
    ("SSL error: certificate verify failed", "no trusted TLS", "sslrootcert"),
    ("received invalid response to SSL negotiation: h", "another service answers there", "pg_isready -h"),
    ("server does not support SSL, but SSL was required", "no trusted TLS", "ALTER SYSTEM SET ssl = on"),
    ('private key file "/k" has group or world access', "the key of our own certificate", "chmod 600"),
    ('certificate does not match private key file "/k": key values mismatch', "cannot be used", "sslcert"),
]
RETRYABLE = [
    ("SSL SYSCALL error: EOF detected", "EOF detected"),
    ("SSL SYSCALL error: Connection reset by peer", "reset by peer"),
    ("SSL connection has been closed unexpectedly", "closed unexpectedly"),
    ("Connection refused\n\tIs the server running on that host?", "cannot be reached: Connection refused"),
    ("timeout expired", "timeout expired"),
    ("FATAL:  the database system is starting up", "starting up"),
    ('could not translate host name "h" to address: Name or service not known', "could not translate"),
]
REFUSED_FOR_NOW = [
    (f"FATAL:  {SLOTS}", "takes no more replication connections", "pg_stat_replication"),
    ('FATAL:  database "d" is not currently accepting connections', "closed", 'ALTER DATABASE "d" ALLOW_CONNECTIONS'),
    ("session is read-only", "no host that answers is a primary", "pg_is_in_recovery()"),
    ("FATAL:  Tenant or user not found", "refuses the connection: FATAL: Tenant", "the server answers"),
]
FULL = ("sorry, too many clients already", 'too many connections for role "u"')
MEANINGS = [
    *((text, LoginError, message, hint) for text, message, hint in LOGIN),
    *((text, OperatorError, message, hint) for text, message, hint in OPERATOR),
    *((text, RetryableError, message, "pg_isready -h h -p 5432") for text, message in RETRYABLE),
    *((text, RetryableError, message, hint) for text, message, hint in REFUSED_FOR_NOW),
    *((f"FATAL:  {text}", RetryableError, "takes no more connections", "pg_stat_activity") for text in FULL),
]


@pytest.mark.parametrize(("text", "kind", "message", "hint"), MEANINGS, ids=[m[0][:50] for m in MEANINGS])
def test_a_failed_connection_says_who_acts(text: str, kind: type[CdcError], message: str, hint: str) -> None:
    """libpq gives words only; its class follows from them, and every message names the place and no password."""
    params = _parameters("h/d")
    error = meaning(endpoint(params), params, f"{FAILED}{text}\n")
    assert type(error) is kind
    assert message in error.message
    assert "h:5432/d" in error.message
    assert hint in (error.hint or "")
    assert SECRET not in str(error)


OF_NAMES = (
    'connection to server at "certificates-db" (10.0.0.7), port 5432 failed: Connection refused',
    'connection to server at "certificates-db" (10.0.0.7), port 5432 failed: SSL SYSCALL error: EOF detected',
    'could not translate host name "certificates-db" to address: Name or service not known',
    f'{FAILED}FATAL:  too many connections for database "SSL certificates"',
    f'{FAILED}FATAL:  too many connections for role "WAL sender"',
)


@pytest.mark.parametrize("text", OF_NAMES)
def test_a_name_means_nothing_whatever_it_says(text: str) -> None:
    """A service that is called after certificates is away for a moment as any other is."""
    assert type(meaning("certificates-db:5432/d", _parameters("certificates-db/d"), text)) is RetryableError


def test_connecting_translates_the_drivers_error_and_hides_its_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback shows the context of an error: psycopg2's may hold the connection string."""

    def refuse(**_: Any) -> None:
        raise psycopg2.OperationalError(FAILED + "Connection refused")

    monkeypatch.setattr(psycopg2, "connect", refuse)
    with pytest.raises(RetryableError) as caught:
        connect(_parameters("h/d"))
    assert caught.value.__suppress_context__
    assert SECRET not in str(caught.value)


def test_a_server_nobody_runs_is_retryable() -> None:
    """For real: no server listens on port 1."""
    with pytest.raises(RetryableError, match=r"127\.0\.0\.1:1/d cannot be reached"):
        connect(_parameters("127.0.0.1:1/d"))


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (psycopg2.OperationalError("server closed the connection unexpectedly"), RetryableError),
        (psycopg2.InterfaceError("connection already closed"), RetryableError),
    ],
)
def test_an_error_without_a_code_is_a_lost_connection(cause: psycopg2.Error, kind: type[CdcError]) -> None:
    """The driver's text is not repeated."""
    error = translate(cause, "reading the catalog")
    assert type(error) is kind
    assert error.message == "reading the catalog: the connection was lost"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("40001", RetryableError), ("40P01", RetryableError), ("53300", RetryableError), ("57P01", RetryableError),
        ("57014", RetryableError), ("08006", RetryableError), ("55006", RetryableError), ("55P03", RetryableError),
        ("42501", OperatorError), ("42P01", OperatorError), ("22P02", OperatorError), ("0A000", OperatorError),
    ],
)  # fmt: skip
def test_an_error_of_a_statement_goes_by_its_class(
    code: str, kind: type[CdcError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What passes is tried again, the rest is an operator's; the server's DETAIL, which quotes values, is left out."""

    class Diagnosis:
        message_primary = "what the server said"
        message_detail = f"Key (id)=({SECRET}) exists"

    class Cause(errors.lookup(code)):  # type: ignore[misc]
        pgcode = code
        diag = Diagnosis()

    error = translate(Cause(), "doing it")
    assert type(error) is kind
    quoted = code[:2] != "22"  # whose messages quote the value
    assert error.message.startswith("doing it: what the server said" if quoted else "doing it: the server cannot read")
    assert SECRET not in str(error)
    assert ("grant" in (error.hint or "")) == (code == "42501")


@pytest.mark.parametrize(
    ("code", "said", "standby"),
    [
        ("55000", "recovery is in progress", False),  # cdc status asks where the log ends
        ("XX000", "cannot assign TransactionIds during recovery", False),  # cdc token writes a message
        ("25006", "cannot execute INSERT during recovery", False),
        ("55000", "Wiederherstellung läuft", True),  # lc_messages = de_DE
        ("25006", "kann ALTER PUBLICATION nicht in einer Read-Only-Transaktion ausführen", False),  # behind a pooler
        ("55000", "replication slots cannot be used on RO (Read Only) node", False),  # Aurora's
    ],
)
def test_what_a_standby_refuses_is_told_as_that(code: str, said: str, *, standby: bool) -> None:
    """Whatever it was asked for; with several hosts in its URL who is told to point at the primary has done that."""
    error = of_sqlstate(code, said, "doing it", standby=standby)
    assert type(error) is RetryableError
    assert error.message == f"doing it: {said}: the server is a standby"
    assert "target_session_attrs=read-write" in (error.hint or "")


def test_names_are_quoted_only_where_sql_needs_it() -> None:
    """For statements shown to a person."""
    assert identifier("public", "orders") == "public.orders"
    assert identifier("My", 'o"d') == '"My"."o""d"'


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("db.example/d", None),
        ("db.example/d?sslmode=verify-ca", "does not check that the certificate is this host's"),
        ("db.example/d?sslmode=require", "does not check who answers"),
        ("db.example/d?sslmode=prefer", "never checks who answers"),
        ("db.example/d?sslmode=disable", "unencrypted"),
        ("localhost/d?sslmode=disable", None),
    ],
)
def test_a_weaker_connection_is_said_aloud_once(rest: str, said: str | None, caplog: pytest.LogCaptureFixture) -> None:
    """What is not checked, in one warning; nothing where all is, or where nothing leaves the machine."""
    session.tell_of_weak_tls.cache_clear()
    for _ in range(3):
        session.tell_of_weak_tls(endpoint(_parameters(rest)), session.weakness(_parameters(rest)))
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == (said is not None)
    assert all((said or "") in message and SECRET not in message for message in messages)


_AS_ASKED = {**settings.SETTINGS, **settings.APART, "DateStyle": "ISO, MDY"}


@pytest.mark.parametrize("name", [*settings.SETTINGS, *settings.APART, *settings.LATER])
def test_a_session_that_is_not_set_as_asked_is_refused(name: str) -> None:
    """Whichever setting it is, and whether the server has another value or says nothing of it."""
    assert settings.differences("db", _AS_ASKED) is None
    refused = settings.differences("db", {**_AS_ASKED, name: "other"})
    assert refused is not None
    assert f"the session has {name} other" in refused.message
    assert "transaction mode" in (refused.hint or "")
    if name in settings.SETTINGS:
        assert settings.differences("db", {n: value for n, value in _AS_ASKED.items() if n != name}) is not None


def test_an_older_server_is_not_asked_for_what_it_does_not_know() -> None:
    assert settings.later(160014, {}) == []
    assert settings.later(180004, {}) == ["SET transaction_timeout = '0'"]


def test_what_libpq_takes_from_the_environment_is_set_again() -> None:
    """It stands behind what the start-up packet asks for."""
    set_here = {"PGTZ": "Asia/Tokyo", "PGDATESTYLE": "German", "PGUSER": "cdc"}
    assert settings.later(160014, set_here) == ["SET TimeZone = 'UTC'", "SET DateStyle = 'ISO'"]
    assert settings.later(160014, {"PGTZ": ""}) == []


@pytest.mark.parametrize(
    "said",
    [
        "FATAL:  unsupported startup parameter: options",
        "FATAL:  unsupported startup parameter in options: search_path",
        "FATAL:  Feature not supported: RDS Proxy currently doesn\u2019t support command-line options.",
    ],
)
def test_a_pooler_that_refuses_settings_is_named(said: str) -> None:
    refused = meaning("h:6432/", {"host": "h"}, f'connection to server at "h", port 6432 failed: {said}')
    assert isinstance(refused, OperatorError)
    assert "pooler" in refused.message
    assert refused.hint == settings.POOLED


def test_an_option_of_the_url_that_the_server_does_not_know_is_no_outage() -> None:
    refused = meaning("h:5432/d", {}, 'connection failed: FATAL:  unrecognized configuration parameter "nonsense"')
    assert isinstance(refused, OperatorError)
    assert "nonsense" in refused.message


@pytest.mark.parametrize("code", ["55P03", "40P01", "40001"])
def test_what_others_are_the_cause_of_is_waited_for_at_the_first_start_too(code: str) -> None:
    """A lock, a deadlock, a transaction that crosses ours."""
    error = session.of_sqlstate(code, "x", "making triggers")
    assert isinstance(error, RetryableError)
    assert error.at_start


@pytest.mark.parametrize(
    ("role", "set_", "grant"),
    [
        (None, "ALTER SYSTEM SET wal_level", 'ALTER ROLE "U" REPLICATION'),
        ("rds_replication", "rds.logical_replication", 'GRANT rds_replication TO "U"'),
        ("cloudsqlsuperuser", "cloudsql.logical_decoding", 'ALTER ROLE "U" REPLICATION'),
        ("alloydbsuperuser", "alloydb.logical_decoding", 'ALTER ROLE "U" REPLICATION'),
        ("azure_pg_admin", "server parameter wal_level", 'ALTER ROLE "U" REPLICATION'),
    ],
)
def test_hints_are_what_a_managed_service_takes(role: str | None, set_: str, grant: str) -> None:
    catalog = Mock(rows=Mock(return_value=[("d", 180000, "18.1", "replica", False, "U", False, role)]))
    level, right = server.refusals(server.look(catalog), "h:5432/d")
    assert set_ in str(level.hint)
    assert right.hint == grant
