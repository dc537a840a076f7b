"""Tells which hosts are this machine: connections to others are checked for TLS."""

from __future__ import annotations

import ipaddress


def is_local(host: str, address: str) -> bool:
    """Whether libpq's `host` and `hostaddr` (lists with commas; empty: a socket) name this machine only."""
    if address or host:
        hosts = (address or host).split(",")
        return all(name.startswith("/") or name == "localhost" or _is_loopback(name) for name in hosts)
    return True


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
