"""Lets the kernel find out that the other side of an idle connection is gone, before a firewall forgets it."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Final

IDLE_S: Final = 30
INTERVAL_S: Final = 10
PROBES: Final = 3

_OPTIONS: Final = (("TCP_KEEPIDLE", IDLE_S), ("TCP_KEEPINTVL", INTERVAL_S), ("TCP_KEEPCNT", PROBES))


def options() -> list[tuple[int, int, int]]:
    """Return what is set on a TCP socket: level, option, value."""
    found = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in _OPTIONS:
        option = getattr(socket, name, None)  # not every system has all of them
        if option is not None:
            found.append((socket.IPPROTO_TCP, option, value))
    return found


def keep_alive(sock: socket.socket) -> None:
    """Send probes over a TCP connection that has been idle for a while; the kernel's own time is two hours.

    Balancers and firewalls forget an idle connection after minutes. Other sockets are left as they are.
    """
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with suppress(OSError):
        for each in options():
            sock.setsockopt(*each)
