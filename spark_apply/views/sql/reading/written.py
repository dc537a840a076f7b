"""A view's SQL as its author wrote it: how it is parsed, and where a part of it stands when it is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import ClassVar

import sqlglot
from sqlglot import TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, SqlglotError, TokenError
from sqlglot.parsers.spark import SparkParser

from cdc.model.errors import ConfigError

FULL = "or say `refresh: full`: the view is then computed whole, and compared, whenever something has changed"
"""The way out where a view has no units."""

UNIT = "or say `unit:` with columns of the key that are the same in all rows which these bring together"
"""Another one, where clauses bring rows together by something."""


_TUMBLING = (
    "window() is not known here: group by date_trunc('HOUR', t), "
    "or by timestamp_micros(unix_micros(CAST(t AS TIMESTAMP)) div 300000000 * 300000000) for 5 minutes"
)


_QUOTE = r"a quote in a text is \' (two of them are none in Spark 4.0); or write a space between two texts"

_UNIT_AT = {
    "DATE_TRUNC": (0, 2),
    "TRUNC": (1, 2),
    **dict.fromkeys(("DATEADD", "DATE_ADD", "TIMESTAMPADD", "DATEDIFF", "DATE_DIFF", "TIMESTAMPDIFF"), (0, 3)),
}
"""Functions with a unit: which argument it is, of how many."""

ABBREVIATED = "abbreviated"
"""In the meta of a function whose unit is written as D, M or W, of which the parser makes what Spark does not."""


def _with_unit(name: str) -> Callable[[list[exp.Expr]], exp.Expr]:
    at, count = _UNIT_AT[name]

    def built(args: list[exp.Expr]) -> exp.Expr:
        unit = args[at].name if len(args) == count else ""
        made: exp.Expr = SparkParser.FUNCTIONS[name](args)
        if unit.upper() in exp.TimeUnit.UNABBREVIATED_UNIT_NAME:
            made.meta[ABBREVIATED] = unit
        return made

    return built


class HllSketchAgg(exp.Expression, exp.AggFunc):
    """``hll_sketch_agg(x)``, of which the parser knows nothing: a sketch of the distinct values of a group."""

    arg_types = {"this": True, "expression": False}  # noqa: RUF012 - as the base class has it


class HllUnionAgg(exp.Expression, exp.AggFunc):
    """``hll_union_agg(s)``: the sketch of what all sketches of a group are of."""

    arg_types = {"this": True}  # noqa: RUF012 - as the base class has it


class HllSketchEstimate(exp.Expression, exp.Func):
    """``hll_sketch_estimate(s)``: about how many distinct values a sketch is of."""

    arg_types = {"this": True}  # noqa: RUF012 - as the base class has it


_MONTHS = ("YEAR", "YEARS", "MONTH", "MONTHS")


class SparkSql(Spark):
    """Spark's dialect, by which all that users write is read."""

    class Parser(SparkParser):
        """Its grammar."""

        TERM: ClassVar = {**SparkParser.TERM, TokenType.DPIPE: exp.DPipe}
        """``||`` binds as ``+`` and ``-`` do, from left to right: ``s || n + 1`` is no text."""

        COMPARISON: ClassVar = {**SparkParser.EQUALITY, **SparkParser.COMPARISON}
        EQUALITY: ClassVar = dict[TokenType, type[exp.Binary]]()
        """All comparisons bind alike, from left to right: ``b <=> c < d`` is ``(b <=> c) < d``."""

        FUNCTIONS: ClassVar = {name: of for name, of in SparkParser.FUNCTIONS.items() if name != "TO_CHAR"}
        """That one is known without its format, which is then not written."""

        def _parse_interval(  # type: ignore[override]  # it stands wherever an expression may
            self,
            require_interval: bool = True,  # noqa: FBT001, FBT002 - as the base class has it
            parse_function_unit: bool = True,  # noqa: FBT001, FBT002 - the same
        ) -> exp.Expr | None:
            """Keep an interval of several units together: ``t - INTERVAL 1 DAY 2 HOURS`` takes both of them away.

            The base class makes a sum of it, which is written without parentheses. Spark has no interval of months and
            days together, and takes no such sum.
            """
            found = super()._parse_interval(require_interval, parse_function_unit)
            if not require_interval or not isinstance(found, exp.Add):
                return found
            if len({str(each.args.get("unit")).upper() in _MONTHS for each in found.find_all(exp.Interval)}) > 1:
                self.raise_error("an interval is of years and months, or of days and time: write two")
            return exp.Paren(this=found)


class _AnsiSpark(SparkSql):
    """The same as the job's sessions have it (ANSI): a cast that fails is an error, not NULL."""

    class Parser(SparkSql.Parser):
        STRICT_CAST = True
        ADJACENT_STRINGS_CANNOT_BE_CONNECTED = True
        """``'it''s'`` is ``its`` in Spark 4.0, and in no other database."""
        FUNCTIONS = {  # noqa: RUF012 - as the base class has it
            **SparkSql.Parser.FUNCTIONS,
            "EVERY": exp.LogicalAnd.from_arg_list,
            "SOME": exp.LogicalOr.from_arg_list,
            "HLL_SKETCH_AGG": HllSketchAgg.from_arg_list,
            "HLL_UNION_AGG": HllUnionAgg.from_arg_list,
            "HLL_SKETCH_ESTIMATE": HllSketchEstimate.from_arg_list,
            **{name: _with_unit(name) for name in _UNIT_AT},
        }


@dataclass(frozen=True, slots=True)
class Written:
    """The SQL of one view."""

    view: str
    text: str
    part: str = "sql"
    """The key of views.yaml that it is written under."""

    def refuse(self, what: str, *, at: exp.Expr | None = None, hint: str) -> ConfigError:
        """Return the error that says what is wrong, and in which line."""
        line = None if at is None else _line(at)
        return ConfigError(
            f"views.{self.view}.{self.part}:{'' if line is None else f' line {line}:'} {what}", hint=hint
        )

    def parse(self) -> exp.Query:
        """Return the one query that the SQL is."""
        try:
            found = [each for each in sqlglot.parse(self.text, read=_AnsiSpark) if each is not None]
        except ParseError as error:
            first = error.errors[0] if error.errors else {}
            near = f", near {first['highlight']!r}" if first.get("highlight") else ""
            what = str(first.get("description") or "it does not end where it should").rstrip(".")
            where = f" line {first['line']}:" if first.get("line") else ""
            raise ConfigError(
                f"views.{self.view}.{self.part}:{where} this is no SQL of Spark: {_plain(what)}{near}",
                hint=_QUOTE
                if what.startswith("Adjacent")
                else _TUMBLING
                if re.search(r"\bwindow\s*\(", self.text, re.IGNORECASE)
                else "correct it",
            ) from error
        except SqlglotError as error:  # a text or a comment without an end
            raise self.refuse("this is no SQL of Spark: a quote or a comment has no end", hint="close it") from error
        if len(found) != 1:
            what = "is empty" if not found else f"has {len(found)} statements"
            raise self.refuse(f"the SQL {what}", hint="write one SELECT")
        query = self.opened(found[0])
        if not isinstance(query, exp.Select | exp.SetOperation):
            raise self.refuse(f"a view is a SELECT, and this is {query.key.upper()}", at=query, hint="write one SELECT")
        return query

    def opened(self, query: exp.Expr) -> exp.Expr:
        """Return what is in parentheses; refuse what stands behind them (LIMIT, say), which is not in them."""
        while isinstance(query, exp.Subquery):
            behind = [each for name, each in query.args.items() if each and name not in ("this", "alias", "with_")]
            if behind:
                part = behind[0][0] if isinstance(behind[0], list) else behind[0]
                raise self.refuse(
                    f"{as_written(part).strip()} behind a query in parentheses is not known here",
                    at=part,
                    hint="take the parentheses away, or SELECT * FROM (…) q with it",
                )
            if query.args.get("alias") or query.args.get("with_"):
                break
            query = query.this
        return query


def tables_named(view: str, sql: str) -> frozenset[str]:
    """Return ``schema.table`` of each table named with a schema. Raises ConfigError for what cannot be parsed."""
    try:
        tree = sqlglot.parse_one(sql, read="spark")
    except ParseError as exc:
        said = exc.errors[0] if exc.errors else {}
        line = f" line {said['line']}:" if said.get("line") else ""
        what = said.get("description") or "it cannot be parsed"
        raise ConfigError(f"views.{view}.sql:{line} {what}", hint="one SELECT in Spark's SQL") from None
    except TokenError:
        raise ConfigError(f"views.{view}.sql: a string or a comment in it does not end", hint="close it") from None
    return frozenset(f"{table.db}.{table.name}" for table in tree.find_all(exp.Table) if table.db)


def is_called(node: exp.Expr) -> bool:
    """Whether ``like(s, 'x%')`` is written, not ``s LIKE 'x%'``: the parser notes a place for functions alone."""
    return "line" in node.meta


def _plain(description: str) -> str:
    """Return sqlglot's words without the names of its classes."""
    if description.startswith("Required keyword"):
        return "something is missing"
    return description.split(" but got <", maxsplit=1)[0]


def _line(at: exp.Expr) -> int | None:
    """Return the line of the first word of an expression of which it is known."""
    part: exp.Expr | None = at
    while part is not None:
        lines = [node.meta["line"] for node in part.walk() if "line" in node.meta]
        if lines:
            return int(min(lines))
        part = part.parent
    return None


_AS = "as_written"


def kept_as(made: exp.Expr, part: exp.Expr) -> exp.Expr:
    """Return what an engine has in place of a part of the SQL, for messages under that one's text."""
    made.meta[_AS] = as_written(part)
    return made


def as_written(part: exp.Expr) -> str:
    """Return a part of the SQL for a message."""
    if _AS in part.meta:
        return str(part.meta[_AS])
    text = re.sub(r"`([A-Za-z_]\w*)`", r"\1", part.sql("spark"))
    return text if len(text) <= 80 else f"{text[:77]}..."  # noqa: PLR2004 - what fits in a line


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the hint for a name that is not among the known ones."""
    names = list(known)
    near = get_close_matches(name.casefold(), [each.casefold() for each in names], n=1, cutoff=0.6)
    if near:
        return f"did you mean {next(each for each in names if each.casefold() == near[0])}?"
    return f"there are: {', '.join(names)}" if names else "there are none"
