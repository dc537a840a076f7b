"""Asks the server how captured tables, their change tables and the triggers on both stand.

A change table with a trigger that is not the connector's is not as it was made: what such a trigger changes or leaves
out nobody knows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from cdc.model.errors import OperatorError
from connectors.mysql import session
from connectors.mysql.catalog.catalog import Captured
from connectors.mysql.catalog.server import Server
from connectors.mysql.values.mapping import quoted_name as quoted
from connectors.triggers.mysql import triggers
from connectors.triggers.mysql.rights import no_process
from connectors.triggers.mysql.shape import Shape, definition
from connectors.triggers.mysql.triggers import Names, Trigger, sql_mode

_MADE_AT: Final = """
SELECT COALESCE(CREATE_TIME, '') FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s
"""
_TRIGGERS: Final = """
SELECT TRIGGER_SCHEMA, TRIGGER_NAME, ACTION_TIMING, EVENT_MANIPULATION, EVENT_OBJECT_TABLE, ACTION_STATEMENT, SQL_MODE,
       CREATED, DEFINER
FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = %s
"""


class Ask(Protocol):
    """Runs a query."""

    def __call__(self, statement: str, *parameters: object) -> list[list[str]]: ...


class Looks:
    """Looks at what one connector follows."""

    def __init__(self, ask: Ask, names: Names, server: Server) -> None:
        self._ask, self._names, self._server = ask, names, server

    def standing(
        self,
        captured: Sequence[Captured],
        shapes: Mapping[int, Shape],
        newest: Mapping[str, int],
        whole: Mapping[int, str],
    ) -> dict[str, str | None]:
        """Return in a word how each table, its change table and its triggers stand; None: not as they were made.

        `newest`: the shape of each table. `whole`: how the change tables that have missed nothing were defined.
        """
        stores = self.stores()
        made = self.triggers({one.table.schema for one in captured} | {self._names.schema})
        found: dict[str, str | None] = {}
        for one in captured:
            name, number = one.table.qualified, newest.get(one.table.qualified, 0)
            found[name] = None
            made_as = self.defined(self._names.schema, self._names.change_table(number)) if number in whole else None
            if made_as is None or whole[number] != made_as:
                continue
            shape = shapes[number]
            if self._server.mariadb and not shape.indexed:
                continue  # its triggers are of an older version
            facts = self._facts(number, shape, made, stores)
            if facts is not None and (shape.key, shape.now) == (one.table.key, facts[0]):
                found[name] = _hashed(json.dumps(facts))
        return found

    def _facts(
        self, number: int, shape: Shape, made: Mapping[tuple[str, str], Sequence[str]], stores: Mapping[str, str]
    ) -> list[str] | None:
        table = self._names.change_table(number)
        now = self.defined(shape.schema, shape.name)
        ours = stores.get(stored_name(self._names.schema, table))
        theirs = stores.get(stored_name(shape.schema, shape.name))
        guards = triggers.guards(self._names, number)
        there = {name for (schema, name), of in made.items() if (schema, of[2]) == (self._names.schema, table)}
        if now is None or ours is None or theirs is None or there != {guard.name for guard in guards}:
            return None
        ((made_at,),) = self._ask(_MADE_AT, shape.schema, shape.name) or [[""]]
        facts = [now, ours, theirs, made_at]
        mode = {*sql_mode(mariadb=self._server.mariadb).split(",")}
        for trigger in (*guards, *triggers.triggers(self._names, number, shape)):
            of = made.get((trigger.schema, trigger.name))
            if of is None or list(of[:3]) != [trigger.timing, trigger.event, trigger.table]:
                return None
            if not self._does(trigger, of[3]) or set(of[4].split(",")) != mode:
                return None
            facts += [*of[5:]]
        return facts

    def _does(self, trigger: Trigger, told: str) -> bool:
        """Tell whether a trigger has its body still; `told` is what the catalog says of it.

        MySQL's catalog garbles names that have a quote in them (`a``b` is told as `aa`bb`): then the statement itself
        is asked for.
        """
        if told == trigger.body or "``" not in trigger.body:
            return told == trigger.body
        rows = self._ask(f"SHOW CREATE TRIGGER {quoted(trigger.schema)}.{quoted(trigger.name)}")
        return any(statement.endswith(f" FOR EACH ROW {trigger.body}") for _, _, statement, *_ in rows)

    def triggers(self, schemas: Iterable[str]) -> dict[tuple[str, str], list[str]]:
        """Return all triggers in some databases, by database and name."""
        return {(schema, name): of for one in sorted(set(schemas)) for schema, name, *of in self._ask(_TRIGGERS, one)}

    def defined(self, schema: str, name: str) -> str | None:
        """Return a table's definition, hashed; None where there is no such table."""
        try:
            ((_, made, *_),) = self._ask(f"SHOW CREATE TABLE {quoted(schema)}.{quoted(name)}")
        except OperatorError:
            return None
        return _hashed(definition(made))

    def stores(self) -> dict[str, str]:
        """Return the ids that InnoDB has given to the data of tables, by their names there, in small letters."""
        table = "INNODB_SYS_TABLES" if self._server.mariadb else "INNODB_TABLES"
        try:
            rows = self._ask(f"SELECT LOWER(NAME), TABLE_ID, SPACE FROM information_schema.{table}")
        except OperatorError as exc:
            if session.is_denied(exc):
                raise no_process(self._server) from exc
            raise
        return {name: f"{table_id}/{space}" for name, table_id, space in rows}


def stored_name(schema: str, table: str) -> str:
    """Return what InnoDB calls a table, in small letters: signs are their number behind an @. Names are of ASCII."""
    encoded = ("".join(c if c.isalnum() or c == "_" else f"@{ord(c):04x}" for c in part) for part in (schema, table))
    return "/".join(encoded).lower()


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
