"""Says what a failed connection means, from libpq's words: it gives no SQLSTATE here. Pure.

Words of a server whose `lc_messages` is not English are not known: they are shown as they are.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Final, NamedTuple

from cdc.machine.tls import says_cut
from cdc.model.errors import CdcError, LoginError, OperatorError, RetryableError
from connectors.postgres import settings


class _Meaning(NamedTuple):
    """Is what some words mean; in its texts `_facts` are filled in."""

    words: str
    """A regular expression."""
    what: str
    """The message."""
    hint: str
    passes: bool = False
    """Whether it passes by itself, as a rule."""
    rotates: bool = False
    """Whether another password, token or role may be in the file by now."""


TOO_MANY_HINT: Final = (
    "SELECT count(*), application_name FROM pg_stat_activity GROUP BY 2; raise max_connections or close some"
)
_TLS: Final = "certificate|SSL"
_NAMES: Final = re.compile(r'"(?!max_wal_senders")[^"]*"')
"""What is quoted: names of hosts, databases, roles and files, which mean nothing, whatever words are in them."""

_MEANINGS: Final = (
    _Meaning(  # libpq's own words, before it asks the server
        r"invalid (?:\w+ value: |integer value \S* for connection option)",
        "source.url: {last}",
        hint="set another value behind the ? of source.url",
    ),
    _Meaning(
        "no password supplied",
        "PostgreSQL at {where} asks for the password of user {user}, and there is none",
        hint="set it in source.url through ${{NAME}} or ${{file:/path}}: is what that names empty?",
        rotates=True,
    ),
    _Meaning(
        "password authentication failed",
        "PostgreSQL at {where} refuses the password of user {user}",
        hint="set the password in source.url through ${{NAME}} or ${{file:/path}}; to change it: ALTER ROLE {role} "
        "PASSWORD '…'; one that has expired is refused, too: SELECT rolvaliduntil FROM pg_roles WHERE rolname = "
        "{literal}",
        rotates=True,
    ),
    _Meaning(
        "authentication failed for user",  # by peer, ident, LDAP, PAM, GSSAPI or a certificate
        "PostgreSQL at {where} refuses user {user}: {last}",
        hint="pg_hba.conf says how who logs in is asked: SELECT * FROM pg_hba_file_rules; a token in the place of a "
        "password may have expired",
        rotates=True,
    ),
    _Meaning(
        "is not permitted to log in",
        "PostgreSQL at {where}: role {user} may not log in",
        hint="ALTER ROLE {role} LOGIN",
        rotates=True,
    ),
    _Meaning(
        "permission denied for database",
        "PostgreSQL at {where}: user {user} may not connect to that database",
        hint="GRANT CONNECT ON DATABASE {database} TO {role}",
    ),
    _Meaning(
        "not currently accepting connections",
        "PostgreSQL at {where}: that database is closed to connections",
        hint="who has closed it? ALTER DATABASE {database} ALLOW_CONNECTIONS true opens it",
        passes=True,
    ),
    _Meaning(
        'database ".*" does not exist',
        "PostgreSQL at {where}: that database does not exist",
        hint="psql {place} -U {shell_user} -d postgres -l lists them",
    ),
    _Meaning(
        'role ".*" does not exist',
        "PostgreSQL at {where}: role {user} does not exist",
        hint="CREATE ROLE {role} LOGIN REPLICATION PASSWORD '…'",
        rotates=True,
    ),
    _Meaning(
        "exceeds .?max_wal_senders",
        "PostgreSQL at {where} takes no more replication connections: {last}",
        hint="SELECT pid, application_name, client_addr FROM pg_stat_replication tells who has them; or raise "
        "max_wal_senders at the server: cdc check CONNECTOR.yaml has the statement",
        passes=True,
    ),
    _Meaning(
        "WAL sender|replication role|start walsender",
        "PostgreSQL at {where}: user {user} may not replicate",
        hint="ALTER ROLE {role} REPLICATION",
    ),
    _Meaning(
        r"no pg_hba\.conf entry|pg_hba\.conf rejects",
        "PostgreSQL at {where} admits no connection of user {user} from here (pg_hba.conf)",
        hint="add to pg_hba.conf: hostssl {hba_database} {user} {address} scram-sha-256; then SELECT pg_reload_conf()",
    ),
    _Meaning(
        "invalid response to SSL negotiation",
        "PostgreSQL at {where}: another service answers there",
        hint="is the port in source.url that of PostgreSQL? pg_isready {place} tells",
    ),
    _Meaning(
        "does not support SSL",
        "PostgreSQL at {where}: no trusted TLS connection: {last}",
        hint="switch TLS on at the server: ALTER SYSTEM SET ssl = on, with its certificate and key; on a network "
        "that nobody else reads, ?sslmode=disable in source.url gives it up",
    ),
    _Meaning(
        "requires a valid client certificate",
        "PostgreSQL at {where} asks for a certificate of user {user}",
        hint="add ?sslcert=/path/to/client.pem&sslkey=/path/to/client.key to source.url",
    ),
    _Meaning(
        "private key file",
        "PostgreSQL at {where}: the key of our own certificate cannot be used: {last}",
        hint="sslkey in source.url names it: it must be of the certificate in sslcert, belong to the user that runs "
        "this, and have chmod 600",
    ),
    _Meaning(
        _TLS,
        "PostgreSQL at {where}: no trusted TLS connection: {last}",
        hint="add ?sslrootcert=/path/to/ca.pem to source.url; ?sslmode=require gives up checking who answers",
    ),
    _Meaning(  # PgBouncer and services built on it; a proxy of Amazon's
        "(?i:unsupported startup parameter|command-line options)",
        "PostgreSQL at {where}: a pooler in between refuses what a session sets: {last}",
        hint=settings.POOLED,
    ),
    _Meaning(
        "configuration parameter|invalid value for parameter",
        "PostgreSQL at {where} refuses a setting: {last}",
        hint="take it out of ?options= in source.url",
    ),
    _Meaning(
        r"too many (?:clients|connections)|remaining connection slots",
        "PostgreSQL at {where} takes no more connections: {last}",
        hint=TOO_MANY_HINT + "; the role's own limit: ALTER ROLE {role} CONNECTION LIMIT -1",
        passes=True,
    ),
    _Meaning(
        "session is read-only|server is in hot standby mode",
        "PostgreSQL at {where}: no host that answers is a primary",
        hint="is one being promoted? SELECT pg_is_in_recovery() at each tells which is the primary, and source.url "
        "should name it",
        passes=True,
    ),
    _Meaning(
        "the database system is",
        "PostgreSQL at {where} cannot be reached: {last}",
        hint="the server is starting or stopping: wait until pg_isready {place} says that it accepts connections",
        passes=True,
    ),
    _Meaning(
        "FATAL: ",
        "PostgreSQL at {where} refuses the connection: {last}",
        hint="the server answers: its log says more",
        passes=True,
    ),
)


def meaning(where: str, params: Mapping[str, str], message: str) -> CdcError:
    """Return what a connection to the place `where` with libpq's `params` has failed for."""
    text = " ".join(message.split())
    facts, words = _facts(where, params, text), _NAMES.sub('""', text)
    for of in _MEANINGS:
        if re.search(of.words, words) and not (of.words is _TLS and says_cut(text)):
            kind = RetryableError if of.passes else LoginError if of.rotates else OperatorError
            return kind(of.what.format(**facts), hint=of.hint.format(**facts))
    return RetryableError(
        f"PostgreSQL at {where} cannot be reached: {facts['last']}",
        hint=f"is the address right, and is it running? pg_isready {facts['place']}",
    )


def _facts(where: str, params: Mapping[str, str], text: str) -> Mapping[str, str]:
    user = params.get("user", "")
    database = params.get("dbname") or user
    asked_from = re.search(r'for host "([0-9a-fA-F.:]+)', text)
    return {
        "where": where,
        "user": user,
        "role": _quoted(user, '"'),
        "literal": _quoted(user, "'"),
        "database": _quoted(database, '"'),
        "hba_database": database or "all",
        "address": f"{asked_from[1]}/{128 if ':' in asked_from[1] else 32}" if asked_from else "<address>",
        "shell_user": shlex.quote(user),
        "place": f"-h {params.get('host', 'localhost')} -p {params.get('port', '5432')}",
        "last": text.rsplit("failed: ", 1)[-1].split(" Is the server running", maxsplit=1)[0][:200],
    }


def _quoted(name: str, mark: str) -> str:
    return f"{mark}{name.replace(mark, mark * 2)}{mark}"
