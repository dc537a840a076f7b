"""Reads the mark of a copy where another hand, or a disk, may have damaged it."""

from __future__ import annotations

import logging
from typing import Final

from spark_apply.model.completeness import Mark

log: Final = logging.getLogger("cdc.apply")


def kept_mark(text: str | bytes, copy: str) -> Mark | None:
    """Return the mark that `text` is; None for a damaged one, which is told: how far the copy is, is then not known.

    A copy that was restored without its mark says the same: it is not gone on with, but read again, or rebuilt.
    """
    try:
        return Mark.from_json(text)
    except (ValueError, TypeError, KeyError, AttributeError):
        log.warning("%s: its mark is damaged, so how far it is, is not known", copy)
        return None
