"""Generates the functions that write rows of one version of a table, as `dataclasses` and `attrs` generate code.

    def write(row):
        v0, v1, = row
        return b'{"id":%b,"name":%b}' % (NULL if v0 is None else v0, NULL if v1 is None else dumps(v1.decode()),)

All decisions that depend on the columns are made here, once. `TableEncoder`'s plain methods are the oracle in tests.
They take over where a generated function raises any error, because a value is missing or is not text of its type, and
say which. `cdc.encode.compiled`, where there is one, does the same in C.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Final, TypeAlias, cast

from orjson import dumps

from cdc.encode import json_text
from cdc.encode.built import built
from cdc.model.change import UNCHANGED, Row

Write: TypeAlias = Callable[[Row], bytes]
Encode: TypeAlias = Callable[[bytes], bytes]

compiled: Final = built("cdc.encode.compiled")

_INLINE: Final[dict[Encode, str]] = {
    json_text.as_is: "{0}",
    json_text.quoted: "b'\"%b\"' % {0}",
    json_text.text: "dumps({0}.decode())",
}


def row_writer(columns: Sequence[tuple[bytes, Encode]]) -> Write:
    """Make the function that writes a row as a JSON object. `columns`: the text before each value, and its encoder."""
    if compiled is not None:
        return cast("Write", compiled.RowWriter(columns))
    taken = "".join(f"v{n}, " for n in range(len(columns))) + "= row"
    values = [f"NULL if v{n} is None else {_code(n, encode)}" for n, (_, encode) in enumerate(columns)]
    return _made(taken, columns, values)


def key_writer(columns: Sequence[tuple[bytes, Encode]], indexes: Sequence[int], *, end: bytes) -> Write:
    """Make the function that writes a row's key; `indexes` says where its columns stand. It raises for a null.

    `end` is what stands behind the last value.
    """
    if compiled is not None:
        return cast("Write", compiled.KeyWriter(columns, indexes, end))
    taken = "; ".join(f"v{n} = row[{index}]" for n, index in enumerate(indexes))
    return _made(taken, columns, [_code(n, encode) for n, (_, encode) in enumerate(columns)], end)


@cache
def hole_finder(indexes: tuple[int, ...]) -> Callable[[Row], bool]:
    """Make a test for UNCHANGED in any of these columns. (`UNCHANGED in row` compares every value, which is slower.)"""
    tests = " or ".join(f"row[{index}] is UNCHANGED" for index in indexes) or "False"
    return cast("Callable[[Row], bool]", _function(f"def find(row):\n    return {tests}\n", "find"))


def size_bound(least: int, factors: Mapping[int, int]) -> Callable[[Row], int]:
    """Make a function: `least` plus each value's length times its factor. It raises TypeError for UNCHANGED."""
    if compiled is not None:
        return cast("Callable[[Row], int]", compiled.SizeBound(least, factors))
    sizes = "".join(f" + (0 if row[{index}] is None else len(row[{index}]) * {by})" for index, by in factors.items())
    return cast("Callable[[Row], int]", _function(f"def bound(row):\n    return {least}{sizes}\n", "bound"))


def _code(number: int, encode: Encode) -> str:
    return _INLINE.get(encode, f"e{number}({{0}})").format(f"v{number}")


def _made(taken: str, columns: Sequence[tuple[bytes, Encode]], values: Sequence[str], end: bytes = b"}") -> Write:
    whole = b"".join(before.replace(b"%", b"%%") + b"%b" for before, _ in columns) + end.replace(b"%", b"%%")
    source = f"def write(row):\n    {taken}\n    return {whole!r} % ({', '.join(values)},)\n"
    return cast("Write", _function(source, "write", **{f"e{n}": encode for n, (_, encode) in enumerate(columns)}))


def _function(source: str, name: str, **more: object) -> object:
    names: dict[str, object] = {"NULL": b"null", "UNCHANGED": UNCHANGED, "dumps": dumps, **more}
    exec(source, names)  # noqa: S102 - made of numbers and of bytes' own repr
    return names[name]
