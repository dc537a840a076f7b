"""Notes in the state how far the topics of captured tables were read."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spark_apply.model.completeness import Mark
from spark_apply.model.store import Visibility
from spark_apply.model.target_table import TargetTable
from spark_apply.views.embedded.state import ViewState


@dataclass(frozen=True, slots=True)
class TableMarks:
    """The marks of tables. What a step changes of them is committed with it."""

    state: ViewState

    def add(self, table: TargetTable) -> None:
        """Note a table that is read, if it is new."""
        self.state.execute("INSERT INTO tables VALUES (?, NULL, false, NULL) ON CONFLICT DO NOTHING", [_entry(table)])

    def known(self) -> set[str]:
        """Return the tables that were ever read."""
        return {name.removesuffix("@history") for (name,) in self.state.rows("SELECT name FROM tables")}

    def of(self, table: TargetTable) -> tuple[Mark | None, bool]:
        """Return a table's mark, and whether its topic was read from its beginning since the last step."""
        found = self.state.rows("SELECT mark, reload FROM tables WHERE name = ?", [_entry(table)])
        if not found:
            return None, False
        mark, reload = found[0]
        return (Mark.from_json(mark) if mark else None), bool(reload)

    def position(self, table: TargetTable) -> str | None:
        """Return the position up to which events were taken in."""
        found = self.state.rows("SELECT position FROM tables WHERE name = ?", [_entry(table)])
        return found[0][0] if found else None

    def write(self, table: TargetTable, mark: Mark) -> None:
        """Replace a table's mark."""
        self.state.execute("UPDATE tables SET mark = ? WHERE name = ?", [mark.to_json(), _entry(table)])

    def note(self, table: TargetTable, visible: Visibility) -> None:
        """Replace a table's mark by that of what may be shown; its version is the one that rows are whole in."""
        mark, known = visible.mark, self.of(table)[0]
        if visible.reading and known is not None:
            mark = replace(mark, version=known.version)
        self.write(table, mark)

    def lags(self, table: TargetTable) -> bool:
        """Whether rows are whole in an older version of the table, as far as its mark says: it may be read again."""
        mark = self.of(table)[0]
        return mark is not None and mark.complete is not None and 0 < mark.version < table.version

    def forget(self, table: TargetTable) -> None:
        """Remove a table's mark: its topic is read again, from the beginning."""
        self.state.execute("UPDATE tables SET mark = NULL WHERE name = ?", [_entry(table)])

    def forget_all(self) -> None:
        """Remove the marks of all tables."""
        self.state.execute("UPDATE tables SET mark = NULL")

    def take_in(self, table: TargetTable, position: str) -> None:
        """Note that events up to a position were taken in."""
        self.state.execute(
            "UPDATE tables SET position = greatest(coalesce(position, ''), ?) WHERE name = ?",
            [position, _entry(table)],
        )

    def reload(self, table: TargetTable, *, due: bool) -> None:
        """Note that the next step finds out which rows the topic has no more, or that a step has done so."""
        self.state.execute(f"UPDATE tables SET reload = {str(due).lower()} WHERE name = ?", [_entry(table)])


def _entry(table: TargetTable) -> str:
    """Return the name by which the state notes how far a table's topic was read: a history has another topic."""
    return f"{table.qualified}@history" if table.history else table.qualified
