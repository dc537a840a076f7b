"""The expressions of a block for Spark itself, which takes them as they are written.

What is refused are functions whose value can differ each time, those that make several rows of one, and names of which
it is not known here whether they are aggregates: the rule must know those.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from sqlglot import exp

from spark_apply.views.sql.expressions.approximate import check_approximate
from spark_apply.views.sql.expressions.carrier import NEVER, NEVER_BY_NAME, UNORDERED, UNSTABLE, shown
from spark_apply.views.sql.expressions.in_spark import as_spark
from spark_apply.views.sql.reading.blocks import Block
from spark_apply.views.sql.reading.written import (
    ABBREVIATED,
    HllSketchAgg,
    HllSketchEstimate,
    HllUnionAgg,
    Written,
)

ANY: Final = "of Spark"
"""The type of every output: Spark says which it is, when it is asked for the view's columns."""

_SEVERAL: Final = ("makes several rows of one", "keep such values in a table of their own, and join it")
_UNKNOWN: Final = (
    "is not known to be a function of one row",
    "write it in another way: what can be used is in docs/views-sql.md",
)
_ROWS: Final = frozenset({"stack", "inline", "inline_outer", "json_tuple", "explode_outer", "posexplode_outer"})
_SKETCHES: Final = (
    "is a sketch, which `engine: spark` does not keep",
    "write approx_count_distinct(x) over the rows, or say `engine: duckdb`",
)

ONE_ROW: Final = frozenset(
    re.findall(
        r"\w+",
        """
        acosh add_months array_compact array_join ascii asinh assert_true atanh base64 bin bround btrim cbrt
        char_length character_length chr conv cosh crc32 csc date_from_unix_date date_part datepart day dayname decode
        degrees e element_at elt encode equal_null factorial find_in_set format_number format_string from_unixtime
        from_utc_timestamp getbit hash hex hypot ilike initcap isnotnull isnull json_array_length lcase levenshtein
        locate log10 log1p log2 luhn_check make_date make_dt_interval make_timestamp make_timestamp_ntz
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


def checked(block: Block, written: Written) -> tuple[Block, tuple[str, ...]]:
    """Return a block as it is, with the types of its outputs left to Spark; raises for what is refused."""
    for expression in block.expressions():
        for node in expression.walk():
            check_approximate(node, written)
            reason = _reason(node)
            if reason is not None:
                raise written.refuse(f"{shown(node)} {reason[0]}", at=node, hint=reason[1])
    made = replace(
        block,
        outputs={name: as_spark(value) for name, value in block.outputs.items()},
        having=tuple(map(as_spark, block.having)),
        order=tuple(map(as_spark, block.order)),
        types=dict.fromkeys(block.outputs, ANY),
    )
    return made, ()


def _reason(node: exp.Expr) -> tuple[str, str] | None:
    if ABBREVIATED in node.meta:
        return f"has the unit {node.meta[ABBREVIATED]}, which Spark does not know", "write it out, as DAY or MONTH"
    if type(node) in NEVER:
        return NEVER[type(node)]
    if isinstance(node, exp.Mode):
        return UNORDERED
    if isinstance(node, HllSketchAgg | HllUnionAgg | HllSketchEstimate):
        return _SKETCHES
    now = isinstance(node, exp.StrToUnix) and node.this is None
    if now or type(node).__name__.startswith(("Current", "Localtime")):
        return UNSTABLE
    if isinstance(node, exp.UDTF):
        return _SEVERAL
    if not isinstance(node, exp.Anonymous):
        return None
    name = node.name.casefold()
    if name in NEVER_BY_NAME:
        return NEVER_BY_NAME[name]
    if name in _ROWS:
        return _SEVERAL
    return None if name in ONE_ROW else _UNKNOWN
