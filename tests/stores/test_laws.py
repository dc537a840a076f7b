"""What `make test` asks of each store, of the laws that `make test-all` asks of all."""

from __future__ import annotations

from tests.spark.laws import (
    LAWS,
    NOT_OF,
    ONLY_IN_FULL,
    a_copy_is_the_fold_of_committed_events,
)


def test_every_law_is_asked_of_a_store_and_every_store_of_rows_and_columns() -> None:
    """Lakes share their MERGE, and all stores the job; `postgres` and lakes have tests of their own of bad events."""
    asked = {
        store: {law for of in LAWS.values() for law in of} - {*NOT_OF.get(store, ()), *left}
        for store, left in ONLY_IN_FULL.items()
    }
    assert sorted(asked) == ["delta", "iceberg", "opensearch", "postgres", "tantivy"]
    assert set.union(*asked.values()) == {law for of in LAWS.values() for law in of}
    for store, laws in asked.items():
        assert a_copy_is_the_fold_of_committed_events in laws, store
        assert laws & set(LAWS["columns"]), store
    of = {kind: {store for store, laws in asked.items() if laws & set(LAWS[kind])} for kind in LAWS}
    assert of["copies"] >= {"iceberg", "postgres", "tantivy"}
    assert of["quarantine"] == {"opensearch", "tantivy"}
