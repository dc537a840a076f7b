"""Finds columns that a copy had, and that another hand has dropped or renamed there, or given each other's names.

And such as another hand has made there under a name that the source gives to a column of its own later.

Made again they would be null in the rows that are there: reading their events again would not fill them, because those
are no newer than the rows. So such a copy is refused, until it is made again or has its columns back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cdc.model.errors import OperatorError
from cdc.model.hints import rebuild
from spark_apply.model.completeness import LOST, Mark
from spark_apply.model.target_table import TargetColumn, TargetTable, rebuilt

Numbers = Mapping[str, int | str | None]
"""Of each column that a copy has, by what its store knows it: a number, or a name in files, that it keeps. One that is
its name says nothing: names in files may be taken away again (Delta's `columnMapping.mode`)."""


def known(there: Numbers) -> dict[str, int | str]:
    """Return what a mark keeps of them."""
    return {name: number for name, number in there.items() if number is not None}


def lost_columns(table: TargetTable, wanted: Iterable[str], there: Numbers, mark: Mark | None) -> list[str]:
    """Return those of the `wanted` columns that a copy does not have, though it had them when it was marked last."""
    if mark is None or mark.version == 0:
        return []
    later = {column.name for column in _later(table, mark)}
    return [
        name
        for name in wanted
        if name not in later
        and (
            name not in there
            or (there[name] not in (None, name) and mark.columns.get(name, there[name]) != there[name])
        )
    ]


def _later(table: TargetTable, mark: Mark) -> list[TargetColumn]:
    """Return the columns that the source has got since a copy was marked."""
    return [
        column
        for column in table.columns
        if mark.version != LOST
        and column.versions
        and all(number > mark.version for _, numbers in column.versions for number in numbers)
    ]


def refuse_lost(table: TargetTable, wanted: Iterable[str], there: Numbers, mark: Mark | None, copy: str) -> None:
    """Raise OperatorError for a copy that has lost columns; `copy` names it."""
    lost = lost_columns(table, wanted, there, mark)
    if not lost and (mark is None or mark.version != LOST):
        return
    missing = [name for name in lost if name not in there]
    what = f"no column {', '.join(missing)} any more" if missing else f"another column {', '.join(lost)} than it had"
    if not missing and mark is not None and mark.version == LOST:
        what = "columns without the values of its rows"
    raise OperatorError(
        f"{copy} has {what}: another hand has dropped or renamed it, and rows that are there would lose its values",
        hint=rebuilt(table),
    )


def come_columns(table: TargetTable, there: Numbers, mark: Mark | None) -> list[TargetColumn]:
    """Return the columns that the source has got since a copy was marked, and that the copy has all the same.

    Where rows that are older than such a column have values in it, another hand has made it: `of_another_hand`.
    """
    if mark is None or mark.version == 0:
        return []
    return [column for column in _later(table, mark) if column.since and column.name in there]


def of_another_hand(table: TargetTable, name: str, copy: str) -> OperatorError:
    """Return the error of a column that another hand has made, whose values would pass for the source's."""
    return OperatorError(
        f"{copy} has a column {name} that another hand has made, and the source has one of this name now: its values "
        "would pass for the source's",
        hint=f"give that column another name there, and it goes on by itself; or rename: {{{name}: …}} under "
        f"tables.{table.qualified}, then {rebuild(table.qualified)}",
    )
