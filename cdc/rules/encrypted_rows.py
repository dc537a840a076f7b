"""Encrypts columns of rows as they are cut down to what is published: behind that, their values are texts.

A row says by its key whom it is about, and the key is in each image that a source sends, so no value is ever encrypted
for somebody else. A value that the log has left out stays left out; what is found for it is of the row only if it can
be decrypted with the key that the row's subject has now (`EncryptedRows.stale`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import orjson

from cdc.config.published.encryption import EncryptRule
from cdc.model.change import UNCHANGED, Column, Row, Table
from cdc.model.errors import OperatorError
from cdc.rules.changed_values import STRING, plain, without_labels
from cdc.rules.keyring import Keyring
from cdc.rules.row_filter import Judge

if TYPE_CHECKING:
    from cdc.rules.encryption import DataKey

_NULL = b"null"


class EncryptedRows:
    """Encrypts the rows of one version of one table."""

    def __init__(
        self, table: Table, rule: EncryptRule, keys: Keyring, judge: Judge | None, kept: Sequence[int]
    ) -> None:
        """`table` has the published columns, as the source has them; `kept` is where those stand in a source's row.

        Raises OperatorError if `by` is no column of the key.
        """
        by = table.key if rule.by is None else (rule.by,)
        if rule.by is not None and rule.by not in table.key:
            raise OperatorError(
                f"source.columns: table {table.qualified}: encrypt.by is {rule.by}, which is no column of its key",
                hint=f"its key: {', '.join(table.key)}; another key, which has {rule.by} too: "
                f"tables: [{{table: {table.qualified}, key: […]}}]",
            )
        self.subject: Final = {"name": rule.subject or table.qualified, "by": list(by)}
        """Whose keys the values are under: the schema topic tells it, for those that erase."""
        self._name, self._table, self._keys, self._judge, self._kept = (
            rule.subject or table.qualified, table.qualified, keys, judge, kept
        )  # fmt: skip
        self._by = [(at, column) for at, column in enumerate(table.columns) if column.name in by]
        self._by.sort(key=lambda of: by.index(of[1].name))
        self._columns = [(at, column) for at, column in enumerate(table.columns) if column.name in rule.columns]
        self._names = {column.name for _, column in self._columns}

    def cut(self, row: Row) -> Row:
        """Cut a row of the source, which is to be published: its subject gets a key if it has none."""
        return self._encrypted(row, make=self._judge is None or self._judge(row) is True)

    def cut_old(self, row: Row) -> Row:
        """Cut the old row of a change: a value of a subject without a key is left out, for nobody could read it."""
        return self._encrypted(row, make=False)

    def stale(self, row: Row, fragments: Mapping[str, bytes]) -> frozenset[str]:
        """Name the columns of `fragments` whose values the reader of this row could not decrypt.

        Their key was erased meanwhile, or they come from a row that was about somebody else. `row` is cut.
        """
        names = self._names & fragments.keys()
        if not names:
            return frozenset()
        subject = self._subject(row)
        key = None if subject is None else self._keys.key(subject, make=False)
        return frozenset(
            name for name in names if fragments[name] != _NULL and not self._opens(key, name, fragments[name])
        )

    def _opens(self, key: DataKey | None, name: str, json: bytes) -> bool:
        return key is not None and key.open(json[1:-1], self._table, name) is not None

    def _encrypted(self, row: Row, *, make: bool) -> Row:
        values = [row[at] for at in self._kept]
        key: DataKey | None = None
        asked = False
        for at, column in self._columns:
            value = values[at]
            if value is None or value is UNCHANGED:
                continue
            if not asked:
                asked, subject = True, self._subject(values)
                key = None if subject is None else self._keys.key(subject, make=make)
            values[at] = UNCHANGED if key is None else self._sealed(key, column, value)
        return tuple(values)

    def _sealed(self, key: DataKey, column: Column, value: bytes) -> bytes:
        try:
            return key.seal(column.encode(value), self._table, column.name)
        except ValueError:  # no text in any encoding: its bytes are a value all the same
            return key.seal(value, self._table, column.name, json=False)

    def _subject(self, row: Sequence[object]) -> bytes | None:
        """Return who a row is about; None: its key is not there or cannot be written, which is told where it is."""
        parts = []
        for at, column in self._by:
            value = row[at]
            if not isinstance(value, bytes):
                return None
            try:
                parts.append(plain(column.encode(value)))
            except ValueError:
                return None
        return self._keys.master.subject(self._name, parts)


def subject_of(keys: Keyring, name: str, values: Sequence[object]) -> bytes:
    """Return who is meant by values of JSON, as a person writes them: the same as of a row that has them."""
    parts = [value.encode() if isinstance(value, str) else orjson.dumps(value) for value in values]
    return keys.master.subject(name, parts)


def encrypted_column(column: Column) -> Column:
    """Return the column as it is published: a text, which may be left out as its values may."""
    return replace(column, type=without_labels(column.type), kind=STRING, encode=_quoted, changed=True)


def _quoted(value: bytes) -> bytes:
    return b'"%b"' % value
