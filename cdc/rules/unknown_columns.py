"""Says which columns that rules name are nowhere. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cdc.config.published.column_rules import ColumnRules
from cdc.config.table_patterns import is_pattern
from cdc.model.change import Table
from cdc.model.errors import OperatorError


def missing(rules: ColumnRules, tables: Sequence[Table]) -> list[str]:
    """Name the columns of rules that none of the tables has."""
    there = {column.name for table in tables for column in table.columns}
    return [name for name in dict.fromkeys((*rules.exclude, *rules.include, *rules.changed)) if name not in there]


def refused(item: str, rules: ColumnRules, tables: Sequence[Table]) -> Iterator[OperatorError]:
    """Give an error if a rule names a column that no table of its item has."""
    if names := missing(rules, tables):
        yield no_column(item, names, tables[0] if not is_pattern(item) else None)


def no_column(name: str, names: Sequence[str], table: Table | None) -> OperatorError:
    """Return the error of columns that a table, or no table of a pattern, has."""
    there = f"its columns: {', '.join(column.name for column in table.columns)}" if table is not None else None
    return OperatorError(f"source.columns: table {name} has no column {', '.join(dict.fromkeys(names))}", hint=there)


def waits(item: str, names: Sequence[str], left_out: Sequence[str]) -> str:
    """Say of columns that they may be of tables that are left out."""
    return (
        f"source.columns: no captured table of {item} has a column {', '.join(names)}: if the name is not misspelt, it "
        f"waits for {', '.join(sorted(left_out)[:10])}, which is left out"
    )
