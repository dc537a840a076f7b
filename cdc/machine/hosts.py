"""Tells which hosts are this machine: connections to others are checked for TLS."""

from __future__ import annotations

import ipaddress


def is_local(host: str, address: str) -> bool:
    """Whether libpq's `host` and `hostaddr` (lists with commas; empty: a socket) name this machine only."""
    if address or host:
        hosts = (address or host).split(",")
        return all(name.startswith("/") or is_local_name(name) for name in hosts)
    return True


def is_local_name(host: str) -> bool:
    """Whether one host, by its name or address, is this machine; names other than ``localhost`` are not looked up."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
