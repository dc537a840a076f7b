"""Documents of a search index have a column's values in one form: others in the same index wait for a rebuild."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.config.apply_config import ApplyTable
from cdc.model.change import Kind
from cdc.model.errors import OperatorError
from spark_apply.events.projection import projected_table
from spark_apply.model.document import forms_of, require_same_forms
from spark_apply.model.target_table import TargetTable, Version
from spark_apply.stores.tantivy.store import TantivyStore

UNSIGNED, LONG = Kind("uint64"), Kind("int64")


def had(*kinds: Kind) -> TargetTable:
    """Return the table whose column `v` has had these kinds."""
    columns = [(("id", LONG), ("v", kind)) for kind in kinds]
    versions = [Version("c", "s", "t", "p.s.t", number, ("id",), of) for number, of in enumerate(columns, 1)]
    return projected_table(versions, ApplyTable(stores=("copy",)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([UNSIGNED], [LONG]),
        ([LONG], [UNSIGNED]),
        ([UNSIGNED], [LONG, Kind("decimal", 20, 0)]),
        ([UNSIGNED], [Kind("decimal", 22, 0)]),
        ([Kind("decimal", 18, 0)], [UNSIGNED]),
        ([Kind("decimal", 10, 2)], [Kind("decimal", 12, 4)]),
        ([LONG], [Kind("string")]),
    ],
)
def test_other_forms_wait_for_a_rebuild(before: list[Kind], after: list[Kind], tmp_path: Path) -> None:
    """A `uint64` is a number in documents, a decimal of the same digits a text."""
    was, now = had(*before), had(*before, *after)
    with pytest.raises(OperatorError, match=r"column v: it is .* and would have to be") as told:
        require_same_forms(now, forms_of(was), "the index")
    assert "cdc rebuild" in (told.value.hint or "")
    require_same_forms(now, forms_of(now), "the index")  # once it is rebuilt
    store = TantivyStore(tmp_path)
    store.open(was)
    for use in (store.foresee, store.open):
        with pytest.raises(OperatorError, match=r"column v: it is .* and would have to be"):
            use(now)
    store.close()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([UNSIGNED], []),
        ([UNSIGNED, LONG], [UNSIGNED]),
        ([Kind("decimal", 10, 0)], [Kind("decimal", 20, 0)]),
        ([Kind("int32")], [LONG]),
        ([LONG], [Kind("int32")]),
        ([Kind("float32")], [Kind("float64")]),
    ],
)
def test_the_same_form_goes_on(before: list[Kind], after: list[Kind], tmp_path: Path) -> None:
    was, now = had(*before), had(*before, *after)
    require_same_forms(now, forms_of(was), "the index")
    store = TantivyStore(tmp_path)
    store.open(was)
    store.open(now)
    store.close()
