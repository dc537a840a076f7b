"""Judges whether a position and a server belong together, and whether the log between them is whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cdc.model.change import Table
from cdc.model.errors import OperatorError
from cdc.model.interfaces import LINEAGE
from cdc.model.state import State
from connectors.postgres.catalog.catalog import Catalog
from connectors.postgres.lsn import lsn_number
from connectors.postgres.slot import slot, timeline
from connectors.postgres.slot.replication_stream import ReplicationConnection

_DATABASE: Final = "database"
_MAY_DIFFER: Final = {LINEAGE: "", _DATABASE: ""}


@dataclass(frozen=True, slots=True)
class SlotAndPublication:
    """Holds the names under which the server keeps a connector's log."""

    slot: str
    publication: str


def identity(walsender: ReplicationConnection, *, database: str, names: SlotAndPublication) -> dict[str, str]:
    """Return what a position belongs to."""
    ((system, number, *_),) = walsender.query("IDENTIFY_SYSTEM", "identifying the server")
    return {"system_identifier": system, LINEAGE: number, _DATABASE: database, "slot": names.slot}


def renamed(catalog: Catalog, then: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Tell whether the database of a position's identity has another name by now: its slot is in this one.

    A slot stays in the database that it was made in. One of that name that was made in another is behind the position.
    """
    if {**then, **_MAY_DIFFER} != {**now, **_MAY_DIFFER} or then[_DATABASE] == now[_DATABASE]:
        return False
    found = slot.find_slot(catalog, now["slot"])
    return found is not None and found.database == now[_DATABASE]


def failed_over(state: State, here: str) -> bool:
    """Tell whether another server than the position's continues its log; `here` is the server's timeline."""
    return state.identity.get(LINEAGE, here) != here


def refusals(
    catalog: Catalog,
    walsender: ReplicationConnection,
    names: SlotAndPublication,
    state: State,
    *,
    here: str,
    tables: Sequence[Table],
) -> Iterator[OperatorError]:
    """Give why the log cannot be followed from `state` without a gap."""
    lsn = lsn_number(str(state.offset["lsn"]))
    yield from timeline.refusals(
        walsender,
        then=int(state.identity.get(LINEAGE, here)),
        now=int(here),
        lsn=lsn,
        snapshot_views=bool(state.snapshot.get("views")),
    )
    yield from slot.slot_refusals(catalog, names.slot, lsn)
    by = slot.publications(state.carried)
    yield from slot.left(catalog, names.publication, followed(state, tables), by)
    yield from slot.publication_refusals(catalog, names.publication, tables)


def followed(state: State, tables: Iterable[Table]) -> set[str]:
    """Return those of the tables whose changes the log must have had all along."""
    return set(state.tables) & {table.qualified for table in tables}
