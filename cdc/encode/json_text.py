"""Encoders that all sources share turn the server's text into JSON text. Pure; bytes to bytes."""

from __future__ import annotations

from collections.abc import Callable

from orjson import dumps


def as_is(value: bytes) -> bytes:
    """Keep text that is JSON already: integers, vectors. Generated code leaves the call out."""
    return value


def quoted(value: bytes) -> bytes:
    """Quote text whose type has nothing to escape: decimals, uuid, addresses. Generated code writes it inline."""
    return b'"%b"' % value


def text(value: bytes) -> bytes:
    """Encode any text. Decoding checks the encoding at no extra cost; no search for escapes beat orjson's own.

    Generated code writes it inline.
    """
    try:
        return dumps(value.decode())
    except UnicodeDecodeError:
        pass  # raised below, because the error holds the value
    raise ValueError("text is not valid UTF-8")


FORMS: dict[Callable[[bytes], bytes], str] = {as_is: "as_is", quoted: "quoted", text: "text"}
"""Encoders that `cdc.encode.compiled` has its own code for, with its names for them. A source adds its encoders here
where it defines them."""

PACKED: dict[Callable[[bytes], bytes], str] = {}
"""Encoders of binary values that compiled code has its own code for in Avro alone: ``raw`` bytes, or ``hex`` digits."""
