"""Asks the catalog how all that is a connector's own stands: what its tables share, change tables, triggers.

Each thing is compared with what was made, and its row in the catalog with the one that was noted: by the transaction
that has made it. So what was altered or renamed, and set back before anybody looked, is found too. A change that was
written down elsewhere, or not at all, meanwhile is not known, and the table is read again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from cdc.config.table_patterns import matches
from connectors.postgres.catalog.catalog import Captured
from connectors.triggers.postgres import triggers
from connectors.triggers.postgres.shape import Shape
from connectors.triggers.postgres.standing import Standing
from connectors.triggers.postgres.triggers import EVENTS, GUARDED, Names

TRIGGERS: Final = """
SELECT t.tgrelid::int8, t.tgname::text, t.tgenabled::text, t.oid::text || '.' || t.xmin::text, t.tgfoid::regproc::text,
       t.tgparentid <> 0
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE t.tgname = ANY (%s) OR (t.tgname = 'kept' AND c.relnamespace = %s::oid)
"""
FUNCTIONS: Final = """
SELECT p.proname::text, p.oid::text || '.' || p.xmin::text, p.prosrc, p.prosecdef, p.proconfig::text,
       p.provolatile::text
FROM pg_proc p WHERE p.pronamespace = %s::oid
"""
TABLES: Final = """
SELECT c.oid::int8, c.relname::text FROM pg_class c WHERE c.relnamespace = %s::oid AND c.relkind IN ('r', 'S')
"""
SECURITY: Final = """
SELECT c.oid::int8, c.relrowsecurity OR c.relforcerowsecurity, c.relkind = 'p',
       has_table_privilege(c.oid, 'TRIGGER'), pg_has_role(c.relowner, 'USAGE')
FROM pg_class c WHERE c.oid = ANY (%s::oid[])
"""
_TREE: Final = (
    "SELECT t.root::int8, p.relid::oid::int8 FROM unnest(%s::oid[]) AS t(root), pg_partition_tree(t.root) AS p"
)
_SEQUENCE: Final = """
SELECT concat_ws('.', s.seqrelid, s.xmin, c.xmin, n.xmin), s.seqtypid = 'int8'::regtype AND s.seqincrement = 1
       AND s.seqcache = 1 AND NOT s.seqcycle AND s.seqmin = 1 AND s.seqmax = 9223372036854775807
FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.oid = %s::oid AND c.relname = 'number'
"""
_KEPT: Final = """
SELECT c.relname::text, t.tgenabled::text FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE t.tgname = 'kept' AND c.relnamespace = %s::oid AND c.relname = ANY (%s)
"""
_NOT_IDENTIFIED: Final = """
SELECT c.relname::text FROM pg_class c
WHERE c.relnamespace = %s::oid AND c.relkind = 'r' AND c.relreplident <> 'f' AND c.relname ~ '^(changes_[0-9]+|missed)$'
      AND EXISTS (SELECT FROM pg_publication_tables p WHERE p.schemaname = %s AND p.tablename = c.relname)
"""
"""Tables that a publication has, and of which no row can be deleted; of others the log would have each, for nobody."""
_CHANGE_TABLES: Final = """
SELECT c.oid::int8, concat_ws('.', c.xmin, i.xmin), c.relpersistence = 'p' AND NOT c.relrowsecurity
       AND p.relname = 'changes' AND p.relnamespace = c.relnamespace
       AND NOT EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid)
       AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype <> 'n')
       AND (SELECT count(DISTINCT a.xmin::text) = 1 AND NOT bool_or(a.attisdropped)
            FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0)
       AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname <> 'kept')
FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid LEFT JOIN pg_class p ON p.oid = i.inhparent
WHERE c.oid = ANY (%s::oid[])
"""


class Ask(Protocol):
    """Runs a query."""

    def __call__(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]: ...


@dataclass(frozen=True, slots=True)
class SharedLook:
    """Is how what all tables share stands."""

    stamps: str
    """The transactions that have made it."""
    wrong: Sequence[str]
    """The statements that set it right; empty: it is as it was made."""


class Looks:
    """Looks at one connector's schema."""

    def __init__(self, ask: Ask, names: Names, where: Collection[str]) -> None:
        self._ask, self._names, self._where = ask, names, where

    def publishes_some(self, table: str) -> bool:
        """Tell whether not all rows of a table may be published."""
        return any(matches(pattern, table) for pattern in self._where)

    def shared(self, schema: int) -> SharedLook:
        """Look at the sequence, and at the functions and tables that all share."""
        stamps, wrong = [], []
        for stamp, right in self._ask(_SEQUENCE, schema):
            stamps.append(str(stamp))
            if not right:
                wrong.append(triggers.numbering(self._names))
        there = self._functions(schema)
        for name, wanted in triggers.shared_functions(self._names).items():
            stamp, *of = there.get(name, ("",))
            stamps.append(str(stamp))
            if of != [wanted.body, False, None, wanted.volatility]:
                wrong.append(wanted.statement)
        guards = dict(self._ask(_KEPT, schema, list(GUARDED)))
        wrong += [one for table in GUARDED if guards.get(table) != "A" for one in triggers.guard(self._names, table)]
        found = self._ask(_NOT_IDENTIFIED, schema, self._names.schema)
        wrong += [triggers.identified(self._names, table) for (table,) in found]
        return SharedLook(" ".join(stamps), wrong)

    def standing(
        self, schema: int, captured: Sequence[Captured], shapes: Mapping[int, Shape], tables: Mapping[int, int]
    ) -> dict[str, str | None]:
        """Return how the triggers of each table stand; None: not as they were made. `tables`: the change tables."""
        newest = {shape.oid: (number, shape) for number, shape in sorted(shapes.items())}
        oids = [one.oid for one in captured]
        security = {oid: (hidden, owned) for oid, hidden, _, _, owned in self._ask(SECURITY, oids)}
        wanted = [self._names.trigger(oid, event) for oid in oids for event in EVENTS]
        look = Standing(
            self._names,
            shared=self.shared(schema).stamps,
            tables=tables,
            kept_as={oid: stamp for oid, stamp, right in self._ask(_CHANGE_TABLES, [*tables.values()]) if right},
            functions=self._functions(schema),
            found=self._ask(TRIGGERS, wanted, schema),
            hidden={oid: hidden for oid, (hidden, _) in security.items()},
            owned={oid: owned for oid, (_, owned) in security.items()},
            partitions=self._partitions(captured),
            missed={shape for (shape,) in self._ask(f"SELECT DISTINCT shape FROM {self._names.of('missed')}")},
        )
        found: dict[str, str | None] = {}
        statement = f"SELECT t.oid::int8, {self._names.of('shape_now')}(t.oid) FROM unnest(%s::oid[]) AS t(oid)"
        shown = dict(self._ask(statement, oids))
        for one in captured:
            there, now = newest.get(one.oid), shown[one.oid]
            same = there is not None and (there[1].now, there[1].qualified) == (now, one.table.qualified)
            same = same and there is not None and there[1].key == one.table.key
            same = same and there is not None and there[1].some == self.publishes_some(one.table.qualified)
            found[one.table.qualified] = look.stands(*there) if same and there is not None else None
        return found

    def _functions(self, schema: int) -> dict[str, tuple[Any, ...]]:
        return {name: tuple(of) for name, *of in self._ask(FUNCTIONS, schema)}

    def _partitions(self, captured: Sequence[Captured]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        roots = [one.oid for one in captured if one.partitioned]
        for root, oid in self._ask(_TREE, roots) if roots else ():
            if oid != root:
                found.setdefault(root, []).append(oid)
        return found
