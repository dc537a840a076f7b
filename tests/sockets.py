"""Tells on which addresses a process listens."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def listening(pid: int) -> set[str]:
    """Addresses, in hexadecimal, and Unix sockets on which a process waits for connections."""
    links = list[str]()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it has been closed just now
            links.append(str(each.readlink()))
    inodes = {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:")}
    found = set()
    for table in ("tcp", "tcp6"):
        rows = [line.split() for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
        found |= {row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return found | {row[7] for row in rows if row[6] in inodes and len(row) > 7}
