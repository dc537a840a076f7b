"""Carries expressions over from Spark to the engine, by a rule for each kind of them, and refuses all others."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from sqlglot import exp

from spark_apply.views.sql.expressions.types import (
    INSTANTS,
    INTEGERS,
    INTERVALS,
    NULL,
    common_type,
    engine_type,
    is_number,
    is_sketch,
)
from spark_apply.views.sql.reading.blocks import CLOCK
from spark_apply.views.sql.reading.written import ABBREVIATED, Written, as_written

ELSEWHERE = "write it in another way, or say `engine: spark`, which runs it"
_ON_DUCKDB = "write it in another way, or say `engine: duckdb`, which runs it"


class Typed(NamedTuple):
    """An expression of the engine, and the type that it has in Spark."""

    sql: exp.Expr
    type: str


class Carrier:
    """Carries expressions over the sources of one block."""

    def __init__(
        self,
        written: Written,
        rules: Mapping[type[exp.Expr], Rule],
        types: Mapping[tuple[str, str], str],
        refusal: Refusal | None = None,
    ) -> None:
        self.written = written
        self._rules = rules
        self._types = types
        self._refusal = refusal
        self._found: dict[int, tuple[exp.Expr, Typed]] = {}
        """What was carried over, by the identity of the expression, which is kept so that no other one gets it."""
        self.warnings: dict[str, None] = {}

    def __call__(self, node: exp.Expr) -> Typed:
        """Return the expression of the engine that gives Spark's value."""
        rule = self._rules.get(type(node))
        if rule is None:
            raise self.unknown(node)
        found = rule(self, node)
        if self._refusal is not None:
            self._found[id(node)] = node, found
            why = self._refusal(self, node, found.type)
            if why is not None:
                raise self.written.refuse(
                    f"{shown(node)} is not known to give Spark's value in PostgreSQL: {why}", at=node, hint=_ON_DUCKDB
                )
        return found

    def type_of(self, node: exp.Expr) -> str:
        """Return the type in Spark of a part of what is carried over."""
        known = self._found.get(id(node))
        return known[1].type if known is not None else self(node).type

    def column(self, node: exp.Column) -> Typed:
        """Return a column with its type."""
        of = self._types.get((node.table, node.name))
        if of is None:
            raise self.unknown(node)
        if is_sketch(of):
            raise self.written.refuse(
                f"{shown(node)} is a sketch, which can only be merged and estimated",
                at=node,
                hint="hll_union_agg(s) merges sketches of several rows, hll_sketch_estimate(s) says how many values",
            )
        return Typed(node.copy(), of)

    def sketch(self, node: exp.Expr) -> Typed:
        """Carry over what must be a sketch."""
        of = self._types.get((node.table, node.name)) if isinstance(node, exp.Column) else None
        if of is not None and is_sketch(of):
            return Typed(node.copy(), of)
        found = self(node)
        return found if is_sketch(found.type) else self.wrong(node, found.type, "a sketch: hll_sketch_agg(x) makes one")

    def output(self, node: exp.Expr) -> Typed:
        """Carry over an output column: it may be a sketch, for what reads it."""
        of = self._types.get((node.table, node.name), "") if isinstance(node, exp.Column) else ""
        return self.sketch(node) if is_sketch(of) else self(node)

    def number(self, node: exp.Expr) -> Typed:
        """Carry over what must be a number."""
        found = self(node)
        return found if is_number(found.type) or found.type == NULL else self.wrong(node, found.type, "a number")

    def text(self, node: exp.Expr) -> Typed:
        """Carry over what must be a text."""
        found = self(node)
        return found if found.type in ("string", NULL) else self.wrong(node, found.type, "a text: cast it to STRING")

    def boolean(self, node: exp.Expr) -> Typed:
        """Carry over what must be a condition."""
        found = self(node)
        return found if found.type in ("boolean", NULL) else self.wrong(node, found.type, "a condition")

    def wrong(self, node: exp.Expr, found: str, wanted: str) -> Typed:
        """Refuse an expression of another type than its place asks for."""
        hint = ELSEWHERE
        if (found, wanted) == ("string", "a number"):  # as a numeric without a precision is
            hint = f"CAST({shown(node)} AS DECIMAL(38, 2)), with as many digits behind the point as it may have"
        raise self.written.refuse(f"{shown(node)} is {found}; it should be {wanted}", at=node, hint=hint)

    def unknown(self, node: exp.Expr) -> Exception:
        """Return the refusal of what is not on the list, with the reason where it is known."""
        reason = NEVER.get(type(node)) or (UNORDERED if isinstance(node, OF_A_WINDOW) else None)
        reason = reason or NEVER_BY_NAME.get(node.name.casefold() if isinstance(node, exp.Anonymous) else "")
        if reason is not None:
            return self.written.refuse(f"{shown(node)} {reason[0]}", at=node, hint=reason[1])
        kind = "function" if isinstance(node, exp.Func) else "expression"
        name = _name(node)
        return self.written.refuse(
            f"the {kind} {name} is not known to give Spark's value here", at=node, hint=_elsewhere(node)
        )

    def differs(self, node: exp.Expr, why: str) -> Exception:
        """Return the refusal of a function for these arguments."""
        return self.written.refuse(
            f"{shown(node)} is not known to give Spark's value here: {why}", at=node, hint=ELSEWHERE
        )

    def literal(self, node: exp.Expr | None, whole: exp.Expr, least: int) -> int:
        """Return an integer that is written out."""
        text = None if node is None else node.sql()
        if text is None or not re.fullmatch(r"-?\d{1,9}", text) or int(text) < least:
            raise self.differs(whole, f"a number of at least {least} must be written out")
        return int(text)

    def together(self, whole: exp.Expr, nodes: list[exp.Expr]) -> tuple[list[exp.Expr], str]:
        """Carry over values of which one is taken: all have the type that Spark gives to them together."""
        found = [self(each) for each in nodes]
        joint = found[0].type
        for each in found[1:]:
            common = common_type(joint, each.type)
            if common is None:
                raise self.differs(whole, f"it has values of the types {joint} and {each.type}; cast them to one")
            joint = common
        return [as_type(each, joint) for each in found], joint


Rule = Callable[[Carrier, exp.Expr], Typed]
Refusal = Callable[[Carrier, exp.Expr, str], str | None]
"""Says why an expression of a type, which one engine takes, is not taken by another."""


class Rules(dict[type[exp.Expr], Rule]):
    """What is carried over, by the kind of expression."""

    def of(self, *kinds: type[exp.Expr], knows: str = "this expression") -> Callable[[Rule], Rule]:
        """Register a rule for kinds of expressions, which `knows` these parts: with others it is refused."""

        def register(function: Rule) -> Rule:
            def checked(carry: Carrier, node: exp.Expr) -> Typed:
                if ABBREVIATED in node.meta:
                    raise carry.differs(node, f"write its unit out: {node.meta[ABBREVIATED]} is none of Spark")
                other = next((name for name, part in node.args.items() if part and name not in known), None)
                if other is not None:
                    raise carry.differs(node, f"{other.replace('_', ' ')} is given")
                return function(carry, node)

            known = frozenset(knows.split())
            self.update(dict.fromkeys(kinds, checked))
            return function

        return register


UNSTABLE = ("is not the same each time", "use clock(), or a column that the application writes")
UNORDERED = (
    "depends on the order in which rows are read",
    "use min(), max() or max_by(x, y), or keep row 1 of row_number() OVER (PARTITION BY … ORDER BY … a key)",
)
LISTAGG: Final = "listagg(x, ', ') WITHIN GROUP (ORDER BY …)"
"""How texts of several rows are listed."""
_COLLECTED: Final = (UNORDERED[0], f"list texts by {LISTAGG}, or {UNORDERED[1]}")
OF_A_WINDOW: Final = (exp.FirstValue, exp.LastValue)
"""Aggregates of any order, too, where they stand without OVER."""
NEVER: Final[dict[type[exp.Expr], tuple[str, str]]] = {
    **dict.fromkeys(
        (exp.Rand, exp.Randn, exp.Uuid, exp.CurrentTimestamp, exp.CurrentDate, exp.CurrentTime, exp.CurrentUser),
        UNSTABLE,
    ),
    **dict.fromkeys((exp.First, exp.Last, exp.AnyValue, exp.Mode), UNORDERED),
    **dict.fromkeys((exp.ArrayAgg, exp.ArrayUniqueAgg), _COLLECTED),
}
NEVER_BY_NAME: Final = {
    **dict.fromkeys(
        (
            "monotonically_increasing_id",
            "spark_partition_id",
            "input_file_name",
            "shuffle",
            "random",
            "now",
            "localtimestamp",
            "current_timezone",
            "current_database",
            "version",
        ),
        UNSTABLE,
    ),
    **dict.fromkeys(("collect_list", "collect_set", "array_agg"), _COLLECTED),
    "window": (
        "is not known here",
        (
            "group by date_trunc(), or by "
            "timestamp_micros(unix_micros(CAST(t AS TIMESTAMP)) div 300000000 * 300000000) for 5 minutes"
        ),
    ),
}

SEVERAL: Final = ("makes several rows of one", "keep such values in a table of their own, and join it")
UNKNOWN: Final = (
    "is not known to be a function of one row",
    "write it in another way: what can be used is in docs/views-sql.md",
)
_ROWS: Final = frozenset({"stack", "inline", "inline_outer", "json_tuple", "explode_outer", "posexplode_outer"})
ONE_ROW: Final = frozenset(
    re.findall(
        r"\w+",
        """
        acosh add_months array_compact array_join ascii asinh assert_true atanh base64 bin bround btrim
        cardinality cbrt char_length character_length chr conv cosh crc32 csc date_from_unix_date date_part datepart day
        dayname decode degrees e element_at elt encode equal_null factorial find_in_set format_number format_string
        from_unixtime from_utc_timestamp getbit hash hex hypot ilike initcap isnotnull isnull json_array_length lcase
        levenshtein locate log10 log1p log2 luhn_check make_date make_dt_interval make_timestamp make_timestamp_ntz
        make_ym_interval map_keys map_values mask monthname next_day nullifzero octet_length overlay parse_url pi pmod
        positive printf quote radians regexp_count regexp_instr regexp_substr rint sec sha sha1 sha2 shiftleft
        shiftright shiftrightunsigned sinh size soundex split_part substring_index tanh timestamp_micros
        timestamp_millis timestamp_seconds to_binary to_char to_number to_timestamp to_timestamp_ntz to_utc_timestamp
        translate trunc try_add try_divide try_element_at try_multiply try_subtract try_to_number try_to_timestamp
        ucase unbase64 unhex unix_date unix_micros unix_millis unix_seconds url_decode url_encode weekday width_bucket
        xxhash64 zeroifnull
        """,
    )
)
"""Functions of Spark that the parser does not know, and that give one value of the values of one row."""


def several(node: exp.Expr) -> bool:
    """Whether a function makes several rows of one."""
    return isinstance(node, exp.UDTF) or (isinstance(node, exp.Anonymous) and node.name.casefold() in _ROWS)


def _elsewhere(node: exp.Expr) -> str:
    """Return the way out for what this engine does not have: Spark's, if that takes it."""
    if several(node):
        return SEVERAL[1]
    known = not isinstance(node, exp.Anonymous) or node.name.casefold() in ONE_ROW
    return ELSEWHERE if known else UNKNOWN[1]


def _name(node: exp.Expr) -> str:
    text = shown(node)
    found = re.match(r"(\w+)\(", text)
    return found[1].lower() if found else text


def shown(node: exp.Expr) -> str:
    """Return an expression for a message."""

    def written_clock(part: exp.Expr) -> exp.Expr:
        return exp.Anonymous(this="clock") if isinstance(part, exp.Var) and part.name == CLOCK else part

    return as_written(node.transform(written_clock))


def call(name: str, *arguments: exp.Expr) -> exp.Expr:
    """A function of the engine."""
    return exp.Anonymous(this=name, expressions=list(arguments))


def cast(value: exp.Expr, of: str) -> exp.Expr:
    """A cast of the engine, which fails where the value does not fit."""
    return exp.Cast(this=value, to=exp.DataType.build(engine_type(of), dialect="duckdb"))


def integer(value: int) -> exp.Expr:
    """A number written out."""
    return exp.Literal.number(value) if value >= 0 else exp.Neg(this=exp.Literal.number(-value))


def case(*branches: tuple[exp.Expr, exp.Expr], default: exp.Expr | None = None) -> exp.Expr:
    """CASE WHEN."""
    return exp.Case(ifs=[exp.If(this=when, true=then) for when, then in branches], default=default)


def failing(message: str, of: str) -> exp.Expr:
    """A value that is an error where it is needed."""
    return cast(call("error", exp.Literal.string(message)), of)


def as_type(value: Typed, of: str) -> exp.Expr:
    """Return the value cast to a common type, where it has another."""
    if value.type in (of, NULL) or of in INTERVALS or (value.type in INTEGERS and of == "bigint"):
        return value.sql
    return value.sql if value.type in INSTANTS and of in INSTANTS else cast(value.sql, of)
