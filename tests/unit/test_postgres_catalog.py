"""When the catalog is asked what a relation of the log is today."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from cdc.model.errors import OperatorError, RetryableError
from connectors.postgres.catalog import capturable, identities, server
from connectors.postgres.catalog.catalog import Catalog
from connectors.postgres.pgoutput.messages import Relation, RelationColumn

BEGAN = 0x500
COLUMNS = (RelationColumn("id", 23, -1, in_identity=True), RelationColumn("note", 25, -1, in_identity=False))
TYPES = [
    (23, "int4", "pg_catalog", "b", 0, -1, 0, ",", False),
    (25, "text", "pg_catalog", "b", 0, -1, 0, ",", True),
]


class Answering(Catalog):
    """A server with tables `public.t7` and `public.t8`, whose log ends at `BEGAN`; counts what it is asked of them."""

    def __init__(self) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self.asked: list[list[int]] = []
        self.files = "as they were"

    def rows(self, doing: str, statement: Any, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if doing == "reading the log's end":
            return [(f"0/{BEGAN:X}",)]
        if doing == "reading pg_type":
            return TYPES
        if doing == "reading the publication":
            return [(False,)]
        if "relpersistence" in statement and "part.root" in statement:
            return [(n, "public", f"t{n}", False, "r", "p", "d", ["id"], [], [], 180_000) for n in (7, 8)]
        if "relpersistence" in statement:
            return [(n, "public", f"t{n}", "r", "d", "p", True, False, False, "us") for n in (7, 8)]
        self.asked.append(parameters[0])
        names, types, typmods, in_identity = (list(of) for of in zip(*COLUMNS, strict=True))
        of = ("1,1", names, types, typmods, in_identity, [False, False], [True, False], [False, False], ["", ""])
        return [(n, "d", ["id"], ["id"], [["id"]], self.files, *of) for n in parameters[0] if n in {7, 8}]

    def met(self, number: int, commit: int | None) -> str:
        """What is said of the files of a relation in the log."""
        relation = Relation(number, "public", f"t{number}", "d", COLUMNS)
        return self.table(relation, [], [], commit=commit).marks[0]


@pytest.fixture
def catalog() -> Answering:
    found = Answering()
    found.captured(["public.*"])
    assert found.asked == [[7, 8]]
    found.files = "as they are"
    return found


def test_of_what_was_committed_before_the_session_it_has_seen_enough(catalog: Answering) -> None:
    """It was looked at behind that already, and all at once."""
    assert [catalog.met(n, BEGAN - 1) for n in (7, 8, 7)] == ["as they were"] * 3
    assert len(catalog.asked) == 1


@pytest.mark.parametrize("commit", [BEGAN, BEGAN + 1, None])
def test_it_asks_again_about_what_is_newer(catalog: Answering, commit: int | None) -> None:
    """And from then on, of all tables: what it saw first is let go."""
    assert catalog.met(7, commit) == "as they are"
    assert catalog.met(8, BEGAN - 1) == "as they are"
    assert catalog.asked[1:] == [[7], [8]]


def test_a_relation_it_has_not_seen_is_asked_for(catalog: Answering) -> None:
    """It is not captured by its own name, or gone."""
    relation = Relation(9, "public", "t9", "d", COLUMNS)
    assert catalog.table(relation, [], [], commit=BEGAN - 1).key == ("id",)
    assert catalog.asked[1:] == [[9]]


def test_a_server_that_is_a_standby_may_be_the_primary_in_a_moment() -> None:
    """So a connector that has run tries again, as in a switchover; what else a server is not, somebody must change."""
    found = server.Server("db", 180000, "18", "replica", standby=True, user="u", may_replicate=False)
    refusals = {type(refusal): refusal.message for refusal in server.refusals(found, "h:1/db")}
    assert refusals[RetryableError] == "PostgreSQL at h:1/db is a standby"
    assert refusals.keys() == {RetryableError, OperatorError}


@pytest.mark.parametrize(("kind", "helps"), [("r", "ALTER TABLE public.t SET LOGGED"), ("p", "make it again")])
def test_what_has_an_unlogged_table_logged(kind: str, helps: str) -> None:
    """Up to PostgreSQL 17, SET LOGGED of a partitioned table succeeds and leaves it unlogged."""
    found = capturable.FoundRelation(
        1, "public", "t", kind, "d", "u", readable=True, deferrable=False, filtered=False, user="u"
    )
    (error,) = capturable.refusals(found)
    assert helps in (error.hint or "")


def test_a_partition_of_which_nothing_is_published_does_not_fail() -> None:
    """A table that is left out for a foreign or an unlogged partition stays in the publication."""

    def rows(doing: str, *_: Any) -> list[tuple[Any, ...]]:
        if doing == "reading the version":
            return [(180000,)]
        if doing == "reading the publication":
            return [(1, "public", "k", True, True, False, "")]
        parts = (("r", "p"), ("f", "p"), ("r", "u"))
        return [(1, "public", f"k_{of}", True, *of, "d", [], [], [], 180000) for of in parts]

    (found,) = identities.accidents(rows, "p", [])
    assert "has no replica identity" in found.why
