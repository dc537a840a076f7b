"""Compares two sides' rows by key and finds the keys that differ; on disk, so that memory stays flat.

Both sides are stored as (key, digest) in the order they come, and one sort finds the differences: the result is that of
a comparison by buckets, without reading either side twice.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import NamedTuple, Self

import orjson

from cdc.machine.temporary_files import TemporaryDatabase

_CACHE_KB = 65_536


class SourceRow(NamedTuple):
    """A row of the source."""

    key: str
    digest: bytes
    text: str
    """The key, as the source prints it."""


class CopiedRow(NamedTuple):
    """A row of the store."""

    key: str
    digest: bytes
    id: str
    """The store's id of the row."""


class Candidate(NamedTuple):
    """A key whose rows differ between the two sides."""

    key: str
    text: str | None
    """None: the source has no such row."""
    ids: tuple[str, ...]
    """The ids of the store's rows with this key."""


class RowComparison:
    """Holds the source's side and one store's side after the other; a context manager."""

    def __init__(self) -> None:
        self._db = TemporaryDatabase(
            "the comparison's list of rows",
            f"PRAGMA cache_size = -{_CACHE_KB};"
            "CREATE TABLE source (key TEXT, digest BLOB, text TEXT);"
            "CREATE TABLE copy (key TEXT, digest BLOB, id TEXT); BEGIN",
        )

    def add_source(self, rows: Iterable[SourceRow]) -> int:
        """Add rows of the source, each key once. Returns how many."""
        return self._db.run_for_each("INSERT INTO source VALUES (?, ?, ?)", rows)

    def begin_copy(self) -> None:
        """Forget the rows of the previous store."""
        self._db.run("DELETE FROM copy")

    def add_copy(self, rows: Iterable[CopiedRow]) -> int:
        """Add rows of the store. Returns how many."""
        return self._db.run_for_each("INSERT INTO copy VALUES (?, ?, ?)", rows)

    def candidates(self) -> Generator[Candidate]:
        """Yield the keys whose rows differ, or that have more than one row in the store; in order."""
        found = self._db.rows(
            "SELECT key, max(text), json_group_array(id) FILTER (WHERE copied) FROM ("
            " SELECT key, digest, text, NULL AS id, 0 AS copied FROM source"
            " UNION ALL SELECT key, digest, NULL, id, 1 FROM copy"
            ") GROUP BY key HAVING count(*) <> 2 OR sum(copied) <> 1 OR min(digest) <> max(digest) ORDER BY key"
        )
        for key, text, ids in found:
            yield Candidate(key, text, tuple(orjson.loads(ids)) if ids else ())

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
