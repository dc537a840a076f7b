"""Finds a document's key as the source prints it: guesses texts, and takes one that the encoder turns into the key."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any

from cdc.model.change import Table
from cdc.model.state import Key
from spark_apply.verify.canonical_row import CanonicalForm

_PLAIN = 1e15
"""Whole numbers below it are printed without an exponent."""


def key_text(table: Table, form: CanonicalForm, key: Mapping[str, Any]) -> Key | None:
    """Return the texts of a document's key columns, in key order; None if no guess fits."""
    parts = []
    for index in table.key_indexes:
        column = table.columns[index]
        wanted = key[form.names[column.name]]
        found = next(
            (text for text in _guesses(wanted) if _gives(form, column.name, column.encode, text, wanted)), None
        )
        if found is None:
            return None
        parts.append(found)
    return tuple(parts)


def _gives(form: CanonicalForm, name: str, encode: Any, text: bytes, wanted: Any) -> bool:  # noqa: ANN401 - JSON
    try:
        made = form.of_event(b'{"%b":%b}' % (name.encode(), encode(text)))
    except (ValueError, LookupError, TypeError):
        return False
    return bool(made[form.columns.index(form.names[name])] == wanted)


def _guesses(value: Any) -> Iterator[bytes]:  # noqa: ANN401 - JSON
    """Yield the texts that a server may print for a value."""
    if isinstance(value, bool):
        yield from (b"t", b"1", b"\x01") if value else (b"f", b"0", b"\x00")
    elif isinstance(value, int):
        yield b"%d" % value
    elif isinstance(value, float):
        if value.is_integer() and abs(value) < _PLAIN:
            yield b"%d" % int(value)
        yield repr(value).encode()
    elif isinstance(value, str):
        yield value.encode()
        moment = value.removesuffix("Z").replace("T", " ")
        zone = "+00" if value.endswith("Z") else ""
        whole, _, fraction = moment.partition(".")
        for digits in (fraction.rstrip("0"), "", fraction.ljust(3, "0"), fraction.ljust(6, "0")):
            yield (whole + ("." + digits if digits else "") + zone).encode()
        try:
            raw = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            return
        yield b"\\x" + raw.hex().encode()
        yield raw
