"""The functions of the embedded engine that make, merge and estimate HyperLogLog sketches, by `datasketches`.

It is imported when the first sketch is made: who has no view with one need not have it installed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import duckdb
from duckdb.func import FunctionNullHandling


@cache
def _library() -> Any:  # noqa: ANN401 - a module
    import datasketches  # noqa: PLC0415 - only where a view asks for it

    return datasketches


def sketch(values: Sequence[str | None] | None, lg_k: int) -> bytes:
    """Return a sketch of texts, each as often as you like, in any order; NULL is none."""
    library = _library()
    made = library.hll_sketch(lg_k, library.HLL_8)
    deque(map(made.update, filter(None, values or ())), maxlen=0)
    return _settled(made, lg_k)


def union(sketches: Sequence[bytes | None] | None, lg_k: int) -> bytes | None:
    """Return the sketch of all that sketches are of; NULL is none, and without any row there is no answer."""
    if sketches is None:
        return None
    library = _library()
    made = library.hll_union(lg_k)
    for each in filter(None, sketches):
        made.update(library.hll_sketch.deserialize(each))
    return _settled(made.get_result(library.HLL_8), lg_k)


def estimate(kept: bytes | None) -> int | None:
    """Return about how many values a sketch is of."""
    if kept is None:
        return None
    about: float = _library().hll_sketch.deserialize(kept).get_estimate()
    return math.floor(about + 0.5)


def _settled(of: Any, lg_k: int) -> bytes:  # noqa: ANN401 - an hll_sketch
    """Return a sketch as bytes that are the same for the same values, in whatever order and parts they came.

    A sketch that values have gone into one by one keeps an estimate of its own beside its registers, which depends on
    their order; one of a union with itself has the registers alone. With few values it has a list of these, which is
    sorted here: their order says nothing.
    """
    library = _library()
    both = library.hll_union(lg_k)
    both.update(of)
    both.update(of)
    made = bytes(both.get_result(library.HLL_8).serialize_compact())
    begin = _FIRST_VALUE.get(made[_MODE] & 3)
    if begin is None:
        return made
    values = sorted(made[at : at + 4] for at in range(begin, len(made), 4))
    return made[:begin] + b"".join(values)


_MODE: Final = 7
"""The byte that says how a sketch is kept. https://datasketches.apache.org/docs/HLL/HllSketches.html"""
_FIRST_VALUE: Final = {0: 8, 1: 12}
"""Where the values of a list begin, and those of a set; registers are the third way."""


def register(connection: duckdb.DuckDBPyConnection) -> None:
    """Give a connection the functions."""
    functions = (
        ("cdc_hll_sketch", sketch, ["VARCHAR[]", "INTEGER"], "BLOB"),
        ("cdc_hll_union", union, ["BLOB[]", "INTEGER"], "BLOB"),
        ("cdc_hll_estimate", estimate, ["BLOB"], "BIGINT"),
    )
    for name, function, parameters, returns in functions:
        connection.create_function(
            name,
            function,
            [duckdb.sqltype(of) for of in parameters],
            duckdb.sqltype(returns),
            null_handling=FunctionNullHandling.SPECIAL,
        )
