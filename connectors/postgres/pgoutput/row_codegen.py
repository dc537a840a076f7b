"""Generates functions that read a row of pgoutput, one for each number of columns: no loop, no list. Pure.

    def read(message, at):
        kind, size = head(message, at)
        if kind == 0x74:                                        # t
            start = at + 5; at = start + size; v0 = message[start:at]
        elif kind == 0x6E: v0 = None; at += 1                   # n
        elif kind == 0x75: v0 = UNCHANGED; at += 1              # u
        else: raise unknown(message, at)
        ...
        return (v0, v1, ), at

Kind and size are read at once, though a column that is null has a kind alone: four bytes follow it all the same if four
columns do. `messages.plain_row` is the oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from struct import Struct
from typing import Final, TypeAlias, cast

from cdc.model.change import UNCHANGED, Row
from cdc.model.errors import ProtocolError

Read: TypeAlias = Callable[[bytes, int], tuple[Row, int]]

_HEAD: Final = Struct(">BI")
_COLUMN: Final = """\
    {head}
    if kind == 0x74:
        start = at + 5
        at = start + size
        v{n} = message[start:at]
    elif kind == 0x6E:
        v{n} = None
        at += 1
    elif kind == 0x75:
        v{n} = UNCHANGED
        at += 1
    else:
        raise unknown(message, at)
"""
_AT_ONCE: Final = "kind, size = head(message, at)"
_AT_THE_END: Final = "kind = message[at]; size = number(message[at + 1:at + 5], 'big')"
_AFTER: Final = _HEAD.size - 1


@cache
def row_reader(count: int) -> Read:
    """Return what reads `count` columns: of a message and where they begin it gives values, and where they end.

    A slice past the message's end is not noticed: the end given lies behind it then. Raises ProtocolError, IndexError
    and struct.error.
    """
    body = "".join(_COLUMN.format(n=n, head=_AT_ONCE if count - 1 - n >= _AFTER else _AT_THE_END) for n in range(count))
    values = "".join(f"v{n}, " for n in range(count))
    source = f"def read(message, at):\n{body}    return ({values}), at\n"
    names: dict[str, object] = {"UNCHANGED": UNCHANGED, "head": _HEAD.unpack_from, "number": int.from_bytes}
    names["unknown"] = lambda message, at: ProtocolError(at, f"a column of unknown kind 0x{message[at]:02x}")
    exec(source, names)  # noqa: S102 - of a number
    return cast("Read", names["read"])
