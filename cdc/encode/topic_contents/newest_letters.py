"""Reads the topic of dead letters back: what it says of a key is newer than an older record of the key's table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import orjson

from cdc.encode.topic_contents import foreign
from cdc.model.change import Table

ReadDeadLetters: TypeAlias = Callable[[], Iterator[tuple[bytes, bytes]]]
"""Reads the dead letters: pairs of key and value."""


def newest_letters(letters: ReadDeadLetters, table: Table) -> dict[bytes, str]:
    """Return the position of the newest dead letter of each key of a table: an older record is not its row's state."""
    newest: dict[bytes, str] = {}
    for key, value in letters():
        try:
            letter = orjson.loads(value)
            of, position = (letter["schema"], letter["table"]), str(letter["position"])
        except (ValueError, KeyError, TypeError):
            foreign.tell("of dead letters", table.qualified)
            continue
        if of == (table.schema, table.name):
            newest[key] = max(newest.get(key, ""), position)
    return newest
