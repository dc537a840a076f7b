"""Waits until there is something to read, whatever the numbers of the descriptors are.

`select.select` takes none from 1,024 on, which a program that follows a log beside other work soon has.
"""

from __future__ import annotations

import select
from collections.abc import Collection


def await_readable(descriptors: Collection[int], within_s: float | None = None) -> set[int]:
    """Return those that can be read, or whose other end is gone; none of them once the time is up.

    Raises ValueError for one that is closed.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(None if within_s is None else within_s * 1_000)}
