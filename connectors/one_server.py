"""Sees to it that all connections of a connector reach one server: an address may have several behind it.

A proxy that spreads connections, a name with several addresses, a URL with several hosts. Rows that are read at a
replica which is behind are older than what the log has told of them, and the place of a view in one server's log means
nothing in another's. So a source notes which server its own session has reached, and each connection beside it to the
same address is compared. Where the server is another one by now, as in a fail-over, the next session notes that one.
"""

from __future__ import annotations

from typing import Final

from cdc.model.errors import RetryableError

_HINT: Final = (
    "source.url must lead to one server for all connections, the primary: not to what spreads them over several, as a "
    "reader's endpoint, a name with several addresses or a proxy may. After a fail-over, or a start of the server, the "
    "connector goes on by itself"
)

_reached: dict[str, str] = {}
"""By address: what tells the server from all others."""


def note(address: str, server: str) -> None:
    """Take a server for the one that a source follows at this address from now on."""
    _reached[address] = server


def forget(address: str) -> None:
    """Let connections to this address reach any server: no source follows one there any more."""
    _reached.pop(address, None)


def require(address: str, server: str, called: str) -> None:
    """Raise RetryableError if a source follows another server at this address; `called` is what it is called."""
    if _reached.get(address, server) != server:
        raise RetryableError(
            f"{called} at {address}: a connection has reached another server than the first", hint=_HINT
        )
