"""Says which texts a key has in events, by its columns and their types, and which texts are of another key. Pure.

A topic tells rows apart by the text of their key, and so does its fold. A copy tells them apart by value. As long as a
key's columns have their types, each row has one text. Where a type changes so that its values have other texts, all
rows come again under these, and the old texts are deleted, in any order and from other partitions. But two texts can be
one value in a copy: ``{"id":5}`` and ``{"id":"5"}`` where it keeps texts, 1.00 and 1.0000 as decimals. So that is
another key, as one of other columns is, and copies have the rows of the newest key alone. Of the events, these count:

- a row, if its version of the table has the newest key, or one that `continues` in it. Rows of others have come again;
- a delete, if its text is one of the newest key (`texts_of`), whatever its version: the deletes of old texts have the
  newest version, too. It deletes the one row that has this text, and no other.

Of each text of the newest key, the newest event then decides, as in the topic, wherever a batch ends and whatever is
compacted. `tests/property/test_key_texts.py` is a model of this rule, with every change of types.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from pyspark.sql import types as T  # noqa: N812 - the name everyone uses

from cdc.model.change import Kind
from spark_apply.model.types import spark_type

BARE, QUOTED = "bare JSON", "JSON string"
"""Forms of what a copy keeps as the text of its JSON: numbers and the like, and strings."""

_INTEGER: Final = "-?[0-9]+"
_YEAR: Final = "[0-9]{4}|-(?!0000)[0-9]{4}|[+-][1-9][0-9]{4,}"
_ANY: Final = "(?s:.*)"
_LIKE_BARE: Final = r"(-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false)$|\{|\[(?!-?[0-9]+:)"
_TEXTS: Final = {
    BARE: (_ANY, f"(?!{_LIKE_BARE}){_ANY}"),  # as strings: dates that are none, infinities, arrays with bounds
    QUOTED: (None, _ANY),
    "text": (None, _ANY),
    "integer": (_INTEGER, None),
    "boolean": ("true|false", None),
    "date": (_INTEGER, None),
    "time_micros": (_INTEGER, None),
    "timestamp_millis": (_INTEGER, None),
    "timestamp_micros": (_INTEGER, None),
    "timestamptz": (None, rf"({_YEAR})-[0-9]{{2}}-[0-9]{{2}}T[0-9:]{{8}}(\.(?!000000)[0-9]{{6}})?Z"),
    "bytes": (None, "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?"),
}


class SourceKey(NamedTuple):
    """The key of a source's table: its columns, and the form of their texts in events."""

    names: tuple[str, ...]
    forms: tuple[str, ...]

    def continues(self, newest: SourceKey) -> bool:
        """Whether each text of this key is one of the `newest`, for the same row."""
        return self.names == newest.names and all(
            now in (was, re.sub("decimal [0-9]+", "text", was))
            for was, now in zip(self.forms, newest.forms, strict=True)
        )

    def among(self, keys: Collection[SourceKey]) -> str:
        """Name the key so that it is told from the others."""
        if all(key == self or key.names != self.names for key in keys):
            return ", ".join(self.names)
        return ", ".join(f"{name} as {form}" for name, form in zip(self.names, self.forms, strict=True))


def form_of(kind: Kind, *, as_text: bool) -> str:
    """Name the form of a column's texts in JSON; `as_text`: of one that copies keep as such."""
    if kind.name == "array" and kind.element is not None:
        form = f"array of {form_of(kind.element, as_text=False)}"
    elif isinstance(spark_type(kind), T.StringType) and kind.name != "time_micros":
        form = "text"  # decimals of any size, too: where copies keep 1.0 and 1.00 as texts, these are two values
    elif kind.name == "decimal":
        form = f"decimal {max(kind.scale or 0, 0)}"
    else:
        form = "integer" if kind.name in ("int16", "int32", "int64", "uint64") else kind.name
    if not as_text:
        return form
    return QUOTED if (texts_of(form) or (_ANY,))[0] is None else BARE


def keys_of(versions: Sequence[SourceKey]) -> tuple[SourceKey, ...]:
    """Return the keys that a table has had in its `versions`, oldest first; one that continues in the next is that."""
    found: list[SourceKey] = []
    for key in versions:
        if found and found[-1].continues(key):
            found.pop()
        found.append(key)
    return tuple(found)


def texts_of(form: str) -> tuple[str | None, str | None] | None:
    """Return patterns of all that a source prints of a form: bare, and as strings; None: no pattern can tell it.

    Two texts that a copy of this form takes for one value do not both match.
    """
    kind, _, digits = form.partition(" ")
    if kind == "decimal":
        fraction = rf"\.[0-9]{{{digits}}}" if int(digits) else ""
        return None, f"(?!-[0.]*$)-?(0|[1-9][0-9]*){fraction}|NaN|-?Infinity"  # none writes a zero with a sign
    return _TEXTS.get(form)
