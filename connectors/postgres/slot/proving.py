"""Reads what the server has between the slot's confirmed LSN and the position, on a connection of its own.

It must not be followed from there itself: the schemas of then are behind us, and most of it was published.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Final

from cdc.model.errors import ProtocolError
from connectors.postgres.catalog.catalog import Catalog
from connectors.postgres.pgoutput import messages
from connectors.postgres.slot.continuity import SlotAndPublication
from connectors.postgres.slot.history import LastTransaction, Proof
from connectors.postgres.slot.replication_stream import ReplicationConnection, data, keepalive
from connectors.postgres.slot.slot import find_slot

_WAIT_S: Final = 0.5
_TENDED_EVERY: Final = 4096
_FREED_S: Final = 10.0
_FREED_LOOK_S: Final = 0.05
_DATA, _KEEPALIVE = b"wk"
_FRAMES: Final = (b"B", b"C")


def prove(
    params: dict[str, str], catalog: Catalog, names: SlotAndPublication, last: LastTransaction, position: int
) -> Iterator[None]:
    """Prove that `last` was the last transaction before the position; yields often, so that others are looked after.

    Raises GapError where it was not, RetryableError where the connection is lost.
    """
    held = find_slot(catalog, names.slot)
    if held is None or held.confirmed >= position or last.commit_lsn >= position:
        return
    proof = Proof(last, confirmed=held.confirmed, position=position)
    with closing(ReplicationConnection(params)) as connection:
        connection.start(names.slot, names.publication, held.confirmed, messages=last.messages)
        yield from _read(connection, proof)
    await_free(catalog, names.slot)


def _read(connection: ReplicationConnection, proof: Proof) -> Iterator[None]:
    inside, untended = False, 0
    while not proof.is_over:
        message = connection.receive()
        untended += 1
        if message is None or untended >= _TENDED_EVERY:
            untended = 0
            yield
        if message is None:
            connection.status(reply=True)  # the answer says how far an idle log has got
            connection.wait(_WAIT_S)
            continue
        if message[0] == _KEEPALIVE:
            end, reply = keepalive(message)
            if not inside:
                proof.reach(end)
            if reply:
                connection.status(every_s=0)
            continue
        if message[0] != _DATA:
            raise ProtocolError(0, f"a replication message of unknown type 0x{message[0]:02x}")
        payload = data(message)[1]
        if payload[:1] not in _FRAMES:
            continue
        match messages.decode(payload):
            case messages.Begin() as begin:
                proof.begin(begin)
                inside = True
            case messages.Commit(_, end_lsn):
                proof.reach(end_lsn)
                inside = False


def await_free(catalog: Catalog, name: str) -> None:
    """Wait a moment until the server has noticed that the slot's last reader is gone."""
    until_s = time.monotonic() + _FREED_S
    while (slot := find_slot(catalog, name)) is not None and slot.active_pid and time.monotonic() < until_s:
        time.sleep(_FREED_LOOK_S)
