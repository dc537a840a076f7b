"""Finds which captured tables a statement may have changed rows of: by triggers, foreign keys and views, too.

A session that logs statements leaves out what they have set off. It is asked of the server as it is now, and what the
connector's user may not see counts as if it were there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cdc.model.errors import OperatorError
from connectors.mysql import session
from connectors.mysql.catalog import server
from connectors.mysql.catalog.foreign_keys import ForeignKey, upwards, written_in
from connectors.mysql.values import mapping

Name = tuple[str, str]

SYSTEM: Final = frozenset({"mysql", "sys", "information_schema", "performance_schema"})
"""Databases of the server, whose tables have no triggers of users."""

_TABLE: Final = "SELECT TABLE_TYPE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
_TRIGGERS: Final = """
SELECT TRIGGER_NAME FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = %s AND EVENT_OBJECT_TABLE = %s LIMIT 1
"""
_MAY_SEE: Final = """
SELECT 1 FROM information_schema.USER_PRIVILEGES WHERE PRIVILEGE_TYPE = 'TRIGGER' AND GRANTEE = {me}
UNION ALL SELECT 1 FROM information_schema.SCHEMA_PRIVILEGES
          WHERE PRIVILEGE_TYPE = 'TRIGGER' AND GRANTEE = {me} AND %s LIKE TABLE_SCHEMA
UNION ALL SELECT 1 FROM information_schema.TABLE_PRIVILEGES
          WHERE PRIVILEGE_TYPE = 'TRIGGER' AND GRANTEE = {me} AND TABLE_SCHEMA = %s AND TABLE_NAME = %s
"""
_ME: Final = (
    "CONCAT('''', SUBSTRING_INDEX(CURRENT_USER(), '@', 1), '''@''', SUBSTRING_INDEX(CURRENT_USER(), '@', -1), '''')"
)


class Reach:
    """Answers from one SQL connection, which stays the caller's. Make another where DDL may have changed tables."""

    def __init__(self, connection: session.Connection, captured: Iterable[Name]) -> None:
        self._connection = connection
        self._captured = frozenset(captured)
        self._folded: dict[Name, set[Name]] = {}
        """As a server compares names that does not mind their case."""
        for name in self._captured:
            self._folded.setdefault(_folded(name), set()).add(name)
        self._children: dict[Name, set[Name]] | None = None
        self.seen: set[Name] = set()
        """The tables whose foreign keys were looked at."""
        self._hidden = False
        """A table that captured ones hang on by foreign keys may not be looked at."""

    def of(self, written: Iterable[Name]) -> frozenset[Name] | None:
        """Return the captured tables that a statement may change which writes these; None: any."""
        found: set[Name] = set()
        for name in written:
            if name[0].lower() in SYSTEM:
                continue
            captured = self._folded.get(_folded(name), set())
            if not captured and not self._is_known(name):
                return None
            for one in captured or {name}:
                hangs = None if self._may_have_triggers(one) else self._hang_on(one)
                if hangs is None:
                    return None
                found |= hangs
            found |= captured
        return frozenset(found)

    def log_end(self) -> int:
        """Return a commit position: all that was looked at is as it was before it."""
        return server.status(self._connection, server.look(self._connection))[0].commit

    def _texts(self, statement: str, parameters: tuple[str, ...] = ()) -> list[list[str]]:
        return [list(row) for row in session.texts(self._connection, "reading the catalog", statement, parameters)]

    def _is_known(self, name: Name) -> bool:
        """Tell whether it is a table, and neither a view nor something that may not be seen."""
        return [row[0] for row in self._texts(_TABLE, name)] in (["BASE TABLE"], ["SYSTEM VERSIONED"], ["SEQUENCE"])

    def _may_have_triggers(self, name: Name) -> bool:
        if not self._texts(_MAY_SEE.format(me=_ME), (name[0], *name)):
            return True
        return bool(self._texts(_TRIGGERS, name))

    def _hang_on(self, name: Name) -> set[Name] | None:
        """Return the captured tables that foreign keys change with this one; None: that may not be seen."""
        if self._children is None:
            self._children = self._foreign_keys()
        if self._hidden:
            return None
        found: set[Name] = set()
        waiting = [name]
        while waiting:
            for child in self._children.get(waiting.pop(), set()) - found:
                found.add(child)
                waiting.append(child)
        return found & self._captured

    def _foreign_keys(self) -> dict[Name, set[Name]]:
        """Return the tables by those whose rows change theirs, up from the captured ones."""
        children: dict[Name, set[Name]] = {}
        found = upwards(self._captured, self._parents)
        self.seen |= found.keys()
        for keys in found.values():
            for key in keys or ():
                children.setdefault(key.parent, set()).add(key.child)
        self._hidden = any(keys is None and child not in self._captured for child, keys in found.items())
        return children

    def _parents(self, child: Name) -> list[ForeignKey] | None:
        try:
            ((_, made, *_),) = self._texts(
                f"SHOW CREATE TABLE {mapping.quoted_name(child[0])}.{mapping.quoted_name(child[1])}"
            )
        except OperatorError:
            return None
        return list(written_in(made, child))


def _folded(name: Name) -> Name:
    return name[0].casefold(), name[1].casefold()
