"""Makes one text of metrics of those of several processes: a metric's samples stand together, below its help. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_HEAD: Final = b"# "
_BEGINS: Final = b"# HELP "
_END: Final = b"# EOF"


def merged(texts: Sequence[bytes]) -> bytes:
    """Merge texts that `prometheus_client` has written, all in one format.

    What is said of a metric is taken from the first that has it: another process may be of another release.
    """
    heads: dict[bytes, list[bytes]] = {}
    samples: dict[bytes, list[bytes]] = {}
    ended = False
    for text in texts:
        name, new = b"", False
        for line in text.removesuffix(b"\n").split(b"\n"):  # a label may have any other end of a line
            if line.startswith(_BEGINS):
                name = line[len(_BEGINS) :].partition(b" ")[0]
                new = name not in heads
                heads.setdefault(name, [])
                samples.setdefault(name, [])
            if line == _END:
                ended = True
            elif not line.startswith(_HEAD):
                samples[name].append(line)
            elif new:
                heads[name].append(line)
    lines = [line for name, head in heads.items() for line in (*head, *samples[name])]
    return b"\n".join([*lines, *([_END] if ended else []), b""])
