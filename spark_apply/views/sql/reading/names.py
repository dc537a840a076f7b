"""Names of columns in a SELECT: what each one means, by Spark's rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from spark_apply.views.sql.reading.blocks import clock, has_clock, operand
from spark_apply.views.sql.reading.written import Written, as_written, did_you_mean


@dataclass(frozen=True, slots=True)
class Visible:
    """A table of FROM as its columns are seen by the clauses of the SELECT."""

    alias: str
    columns: Mapping[str, exp.Expr]
    """What each column is, over the sources of the block."""
    qualified: str | None = None
    """``schema.table``, by which it can be called too where it has no alias of its own."""
    merged: tuple[str, ...] = ()
    """Columns that USING has made one with an earlier table's, in its order."""


def find(name: str, names: Iterable[str]) -> str | None:
    """Return the name that is meant: the one that is equal, or else the only one that differs in case alone."""
    known = list(names)
    if name in known:
        return name
    alike = [each for each in known if each.casefold() == name.casefold()]
    return alike[0] if len(alike) == 1 else None


class Names:
    """Resolves the columns of one SELECT."""

    def __init__(
        self,
        written: Written,
        tables: Sequence[Visible],
        *,
        first: str | None = None,
        leading: Sequence[tuple[str, str]] = (),
    ) -> None:
        """`first`: the table whose columns are meant where others have a column of the name too.

        `leading`: tables and columns that ``*`` begins with, as USING has made them one with those of other tables.
        """
        self._written = written
        self._tables = tables
        self._first = first
        self._leading = leading

    def resolve(
        self, expression: exp.Expr, outputs: Mapping[str, exp.Expr] | None = None, *, outputs_first: bool = False
    ) -> exp.Expr:
        """Return an expression over sources; `outputs` are resolved outputs that may be called by their alias too.

        With `outputs_first` the alias is meant where a table has a column of the name too, outside of aggregates.
        """

        def meaning(node: exp.Expr) -> exp.Expr:
            if isinstance(node, exp.Column) and isinstance(node.this, exp.Identifier):
                mine = outputs_first and not node.table and node.find_ancestor(exp.AggFunc) is None
                alias = find(node.name, outputs or {}) if mine else None
                if outputs and alias is not None:
                    return located(operand(outputs[alias].copy()), node)
                return self.column(node, outputs or {})
            if isinstance(node, exp.Dot) and not isinstance(node.expression, exp.Star):
                return node  # a field of a value, which Spark's own SQL has
            if isinstance(node, exp.Column | exp.Dot) and not isinstance(node.this, exp.Star):
                raise self._written.refuse(
                    f"{as_written(node)} is no column", at=node, hint="write column, or table.column"
                )
            if isinstance(node, exp.Anonymous) and node.name.casefold() == "clock" and not node.expressions:
                return clock(node)
            return node

        return expression.transform(meaning).transform(_without_between).unnest()

    def column(self, column: exp.Column, outputs: Mapping[str, exp.Expr]) -> exp.Expr:
        """Return what a column means."""
        asked = ".".join(part.name for part in column.parts)
        table = ".".join(part.name for part in column.parts[:-1])
        candidates = [each for each in self._tables if not table or _called(each, table)]
        if table and not candidates and (whole := self._whole(column, outputs)) is not None:
            return exp.Dot(this=operand(whole), expression=column.this.copy())
        if table and not candidates:
            raise self._written.refuse(
                f"{asked}: there is no table {table} in FROM here",
                at=column,
                hint=did_you_mean(table, (each.alias for each in self._tables)),
            )
        found = [
            (each, name)
            for each in candidates
            if (name := find(column.name, each.columns)) is not None and not (not table and name in each.merged)
        ]
        if len(found) > 1 and self._first is not None and not table:
            found = [each for each in found if each[0].alias == self._first] or found
        if len(found) > 1:
            owners = " and ".join(each.alias for each, _ in found)
            raise self._written.refuse(
                f"{asked} is ambiguous: {owners} have it", at=column, hint=f"write {found[0][0].alias}.{column.name}"
            )
        if found:
            owner, name = found[0]
            return located(operand(owner.columns[name].copy()), column)
        alias = None if table else find(column.name, outputs)
        if alias is not None:
            return located(operand(outputs[alias].copy()), column)
        known = dict.fromkeys(name for each in candidates for name in each.columns)
        raise self._written.refuse(f"there is no column {asked}", at=column, hint=did_you_mean(column.name, known))

    def _whole(self, column: exp.Column, outputs: Mapping[str, exp.Expr]) -> exp.Expr | None:
        """Return the column, or the field of one, of which `column` names a field, if it is none of a table."""
        *before, name = (part.copy() for part in column.parts[:-1])
        of = exp.Column(this=name, **dict(zip(("table", "db", "catalog"), reversed(before), strict=False)))
        table = ".".join(part.name for part in before)
        listed = [each.columns for each in self._tables if not table or _called(each, table)]
        if any(find(of.name, names) is not None for names in (*listed, *(() if table else (outputs,)))):
            return self.column(of, outputs)
        inner = self._whole(of, outputs) if before else None
        return None if inner is None else exp.Dot(this=operand(inner), expression=name)

    def known(self, column: exp.Column) -> exp.Expr | None:
        """Return what an unqualified column is of the tables, if one table alone has it."""
        found = [each.columns[name] for each in self._tables if (name := find(column.name, each.columns)) is not None]
        return found[0] if len(found) == 1 else None

    def star(self, star: exp.Expr) -> list[tuple[str, exp.Expr]]:
        """Return the columns that ``*`` or ``t.*`` stands for."""
        table = star.table if isinstance(star, exp.Column) else ""
        inner = star.this if isinstance(star, exp.Column) else star
        for option in ("replace", "rename"):
            if inner.args.get(option):
                raise self._written.refuse(
                    f"{as_written(star)} is not known here", at=star, hint="write the columns out"
                )
        if table and not any(_called(each, table) for each in self._tables):
            raise self._written.refuse(
                f"{table}.*: there is no table {table} in FROM here",
                at=star,
                hint=did_you_mean(table, (each.alias for each in self._tables)),
            )
        left_out = [each.name.casefold() for each in inner.args.get("except_") or ()]
        listed = [
            (each, name)
            for each in self._tables
            if not table or _called(each, table)
            for name in each.columns
            if (table or name not in each.merged) and name.casefold() not in left_out
        ]
        return [
            (name, located(each.columns[name].copy(), star))
            for each, name in sorted(listed, key=lambda found: self._place(*found))
        ]

    def _place(self, table: Visible, column: str) -> tuple[int, int]:
        """Return where Spark has a column of a star: the hidden ones of USING, the others of it, the rest."""
        if column in table.merged:
            return 0, table.merged.index(column)
        place = (table.alias, column)
        return 1, self._leading.index(place) if place in self._leading else len(self._leading)


def _called(table: Visible, name: str) -> bool:
    asked = name.casefold()
    return asked == table.alias.casefold() or (table.qualified is not None and asked == table.qualified.casefold())


def _without_between(node: exp.Expr) -> exp.Expr:
    """Write BETWEEN with a clock as its two comparisons, which change at different instants."""
    if not isinstance(node, exp.Between) or not has_clock(node):
        return node
    low = exp.GTE(this=node.this.copy(), expression=node.args["low"])
    return exp.paren(exp.And(this=low, expression=exp.LTE(this=node.this, expression=node.args["high"])), copy=False)


def located(expression: exp.Expr, at: exp.Expr) -> exp.Expr:
    """Return the expression with the place in the SQL of what it stands for."""
    place = next((node.meta for node in at.walk() if "line" in node.meta), None)
    if place:
        for node in expression.walk():
            if isinstance(node, exp.Identifier):
                node.meta["line"] = place["line"]
    return expression
