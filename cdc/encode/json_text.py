"""The encoders that all sources share: the server's text to JSON text. Pure; bytes to bytes."""

from __future__ import annotations

from collections.abc import Callable

from orjson import dumps


def as_is(value: bytes) -> bytes:
    """Text that is JSON already: integers, vectors. Generated code leaves the call out."""
    return value


def quoted(value: bytes) -> bytes:
    """Text whose type rules out all that JSON escapes: decimals, uuid, addresses. Generated code writes it inline."""
    return b'"%b"' % value


def text(value: bytes) -> bytes:
    """Any text. Decoding checks the encoding at no extra cost; no search for escapes was faster than orjson's own.

    Generated code writes it inline.
    """
    try:
        return dumps(value.decode())
    except UnicodeDecodeError:
        pass  # raised below, because the error holds the value
    raise ValueError("text is not valid UTF-8")


FORMS: dict[Callable[[bytes], bytes], str] = {as_is: "as_is", quoted: "quoted", text: "text"}
"""Encoders that `cdc.encode.compiled` writes by itself, by its names for them. A source adds its own where it defines
them."""
