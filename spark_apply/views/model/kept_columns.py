"""Which columns of a captured table a state keeps. Pure."""

from __future__ import annotations

from spark_apply.model.target_table import TargetTable
from spark_apply.views.model.values import Columns


def kept_columns(table: TargetTable) -> Columns:
    """Return the columns that a state keeps of a table: of those that the engine takes for one name, one alone.

    It does not tell upper from lower case, and a table has all columns that it ever had: where one was renamed in its
    case alone, the name that it has now counts.
    """
    counts = dict[str, str]()
    now = {column.name for column in table.columns if any(table.version in of for _, of in column.versions)}
    for column in sorted(table.columns, key=lambda column: column.name not in now):
        counts.setdefault(column.name.casefold(), column.name)
    return [(column.name, column.kind) for column in table.columns if column.name in counts.values()]
