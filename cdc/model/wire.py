"""What a table's records are on the wire where that is not plain JSON: the seam behind which the formats stand.

An encoder writes JSON of which a `Wire` makes a record's value. Keys are what the wire has from the beginning, because
they are compared as bytes: with what the topic holds, with those of a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from cdc.model.change import Table


class Wire(Protocol):
    """The format of the records of one version of one table."""

    encoders: Sequence[Callable[[bytes], bytes]]
    """How each column's value becomes JSON: the type is the same whatever the value."""
    key_form: str
    """What differs where the bytes of the same key do."""
    value_form: str
    """The registry's id of the schema of values; empty: there is none."""
    value_print: str
    """The fingerprint of that schema's text: the same id for another text is of a registry that was made again."""
    around_key: tuple[bytes, bytes] | None
    """What stands before and behind a key's JSON; None: the key is not JSON."""
    numbers: Mapping[str, Any] | None
    """What the schema topic keeps of numbers that fields have for good; None: they have none."""
    compiled: Any
    """The same for `cdc.encode.compiled`; None: nothing is compiled."""

    def key(self, json: bytes) -> bytes:
        """Make a record's key of its JSON."""

    def key_image(self, key: bytes) -> bytes:
        """Give the JSON of a record's key; ``null`` for one of another form."""

    def value(self, json: bytes) -> bytes:
        """Make a record's value of the event's JSON, or of the row's where the topic is flat."""


@runtime_checkable
class Placing(Protocol):
    """A part of a `Source` whose events tell their place in its log."""

    places: tuple[str, ...]
    """What `Transaction.where` tells, in its order: ``txId``, ``lsn``. Logs of one name may tell other things."""


def places_of(source: object) -> tuple[str, ...]:
    """Return what a source's events tell of their place in its log."""
    return source.places if isinstance(source, Placing) else ()


class Wires(Protocol):
    """Makes the formats of tables."""

    def begin(self, source: str, database: str, places: tuple[str, ...]) -> None:
        """Forget what was learnt from a registry: a session begins, and everything outside may have changed.

        All three are what events say: `cdc.model.interfaces.Source`, `places_of`.
        """

    def moved(self) -> bool:
        """Whether the registry no longer has the ids that it gave in this session, or takes what it has refused.

        Waits for nothing.
        """

    def lost(self, record: Mapping[str, Any]) -> bool:
        """Whether the registry has something else, or nothing, under the id of values of a schema topic's record.

        Raises as `of`.
        """

    def of(self, table: Table, topic: str, numbers: Mapping[str, Any] | None = None) -> Wire | None:
        """Return the format of a table; None: plain JSON. `numbers` are those that the schema topic has.

        A registry learns its schemas now, before the first event that needs them. Raises TopicError if it refuses
        them, OperatorError if it takes none, and RetryableError if it cannot be asked.
        """
