"""The least a connector's user may do, as docs/operations.md has it; the owner runs what `cdc check` prints.

So every test of a connector proves that this is enough, and that the printed statements are.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import psycopg2
from psycopg2 import extensions, sql

from cdc.config.config import load_connector
from cdc.model.errors import CdcError
from cdc.model.state import State
from connectors.postgres.check import check
from sinks.topics.records.positions import read_standing
from tests.canary import CANARY
from tests.integration.in_process import environ

_BY_THE_OWNER = re.compile(r"GRANT |CREATE PUBLICATION |ALTER PUBLICATION .* ADD TABLE ")
_ROUNDS = 3  # a right at first, then what can be seen with it


class CaptureRole:
    """LOGIN REPLICATION on one server; in its database the right to read what the owner grants."""

    def __init__(self, owner_url: str) -> None:
        self._owner_url = owner_url
        parts = urlsplit(owner_url)
        self.name = f"cdc_capture_{parts.path.removeprefix('/')}"
        host = parts.netloc.rpartition("@")[2]
        self.url = f"postgresql://{self.name}:{CANARY}@{host}{parts.path}" + (f"?{parts.query}" if parts.query else "")
        self._make()

    def _make(self) -> None:
        connection = psycopg2.connect(self._owner_url)
        connection.autocommit = True
        role = sql.Identifier(self.name)
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (self.name,))
                verb = sql.SQL("ALTER" if cursor.fetchone() else "CREATE")
                verifier = extensions.encrypt_password(CANARY, self.name, connection, "scram-sha-256")
                cursor.execute(sql.SQL("{} ROLE {} LOGIN REPLICATION PASSWORD %s").format(verb, role), (verifier,))
                cursor.execute(sql.SQL("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO {}").format(role))
                cursor.execute(sql.SQL("ALTER DEFAULT PRIVILEGES GRANT USAGE ON SCHEMAS TO {}").format(role))
        finally:
            connection.close()

    def put_right(self, file: Path, environment: dict[str, str]) -> None:
        """Run as the owner what `cdc check` prints for the owner: grants, the publication."""
        if environment["TEST_DATABASE_URL"] != self.url:
            return  # a test of rights, or of another server
        with environ(environment):
            config = load_connector(file)
        state: State | None = None
        known = True
        if self._rows(f"SELECT FROM pg_replication_slots WHERE slot_name = '{config.slot}'"):
            try:
                state = read_standing(config.sink, config.name).state
            except CdcError:
                known = False
        for _ in range(_ROUNDS):
            found = check(config, state, known=known).findings
            statements = [f.fix for f in found if f.fix is not None and _BY_THE_OWNER.match(f.fix)]
            if not statements:
                return
            for statement in statements:
                self._rows(statement)

    def _rows(self, statement: str) -> list[tuple[object, ...]]:
        connection = psycopg2.connect(self._owner_url)
        connection.autocommit = True
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return cursor.fetchall() if cursor.description is not None else []
        finally:
            connection.close()
