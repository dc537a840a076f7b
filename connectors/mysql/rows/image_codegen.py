"""Makes the functions that read a row image: generated Python, or the same in C.

All that depends on the columns is decided here, once: their steps one after the other, without a loop, neighbours of a
fixed size read at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, Final, TypeAlias

from cdc.encode.built import built
from cdc.model.change import UNCHANGED, Row
from connectors.mysql.binlog.events import TableColumn
from connectors.mysql.rows.column_forms import Fixed, Sized, form_of

Read: TypeAlias = Callable[[bytes, int], tuple[Row, int]]
"""Returns a row and where the next begins."""

_READS_MAX: Final = 256
"""Generated functions that are kept."""

compiled: Final = built("connectors.mysql.binlog.compiled")


@lru_cache(maxsize=_READS_MAX)
def in_c(columns: Sequence[TableColumn], present: Sequence[bool]) -> Read:
    """Return what reads one image with these columns in it, if there is `compiled`."""
    assert compiled is not None  # noqa: S101 - by its callers
    told = [(form.known, form.code, form.text()) if isinstance(form, Fixed) else form for form in map(form_of, columns)]
    read: Read = compiled.Image(told, [column.nullable for column in columns], present)
    return read


@lru_cache(maxsize=_READS_MAX)
def generated(columns: Sequence[TableColumn], present: Sequence[bool]) -> Read:
    """Return the function that reads one image with these columns in it: the oracle of `in_c`."""
    source, names = _source(columns, present)
    exec(compile(source, "<row image>", "exec"), names)  # noqa: S102 - made of constants and numbers above
    read: Read = names["read"]
    return read


def _source(columns: Sequence[TableColumn], present: Sequence[bool]) -> tuple[str, dict[str, Any]]:
    """Write `def read(d, p)`: a branch for rows without NULL, one that asks for each nullable column."""
    names: dict[str, Any] = {"UNCHANGED": UNCHANGED}
    shown = [i for i, there in enumerate(present) if there]
    bits = {i: at for at, i in enumerate(shown)}
    nullable = {i for i in shown if columns[i].nullable}
    size = (len(shown) + 7) // 8
    mask = sum(1 << bits[i] for i in nullable)
    lines = [f"n = {_little_endian(size)}", f"p += {size}"]
    plain = _steps(columns, shown, frozenset(), bits, names)
    if nullable:
        lines += [
            f"if n & {mask}:",
            *_indented(_steps(columns, shown, nullable, bits, names)),
            "else:",
            *_indented(plain),
        ]
    else:
        lines += plain
    lines += ["if p > len(d): raise IndexError"]
    row = "".join(f"{f'v{i}' if there else 'UNCHANGED'}, " for i, there in enumerate(present))
    lines += [f"return ({row}), p"]
    return "\n".join(["def read(d, p):", *_indented(lines)]), names


def _little_endian(size: int) -> str:
    """Write a number of `size` bytes at `p`: up to three, bytes are faster put together by hand."""
    if size > 3:  # noqa: PLR2004
        return f"int.from_bytes(d[p:p+{size}], 'little')"
    return " | ".join(f"d[p+{i}] << {8 * i}" if i else "d[p]" for i in range(size))


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _steps(
    columns: Sequence[TableColumn],
    shown: Sequence[int],
    nullable: frozenset[int] | set[int],
    bits: dict[int, int],
    names: dict[str, Any],
) -> list[str]:
    lines: list[str] = []
    run: list[tuple[int, Fixed]] = []

    def flush() -> None:
        if run:
            lines.extend(_fixed(run, names))
            run.clear()

    for i in shown:
        form = form_of(columns[i])
        if i not in nullable and isinstance(form, Fixed):
            run.append((i, form))
            continue
        flush()
        step = _fixed([(i, form)], names) if isinstance(form, Fixed) else _sized(i, form, names)
        if i in nullable:
            lines += [f"if n & {1 << bits[i]}: v{i} = None", "else:", *_indented(step)]
        else:
            lines += step
    flush()
    return lines or ["pass"]


def _fixed(run: list[tuple[int, Fixed]], names: dict[str, Any]) -> list[str]:
    layout = Struct("<" + "".join(form.code for _, form in run))
    unpack = f"u{len(names)}"
    names[unpack] = layout.unpack_from
    lines = [f"{', '.join(f'x{i}' for i, _ in run)}, = {unpack}(d, p)", f"p += {layout.size}"]
    for i, form in run:
        names.update({f"{name}{i}": value for name, value in form.names.items()})
        bound = {name: f"{name}{i}" for name in form.names}
        lines.append(f"v{i} = {form.expression.format(x=f'x{i}', **bound)}")
    return lines


def _sized(i: int, form: Sized, names: dict[str, Any]) -> list[str]:
    width = form.width
    lines = [f"e = p + {width} + ({_little_endian(width)})"]
    value = f"d[p+{width}:e]"
    if form.text is not None:
        lines.append("if e > len(d): raise IndexError")
        names[f"f{i}"] = form.text
        value = f"f{i}({value})"
    return [*lines, f"v{i} = {value}", "p = e"]


read_image: Final = generated if compiled is None else in_c
