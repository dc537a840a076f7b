"""Items of `tables`: names, patterns, and those that leave tables out."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

LEFT_OUT = "!"
"""How an item of `tables` begins that leaves tables out."""


def matches(pattern: str, name: str) -> bool:
    """Whether `pattern` names ``schema.table``: ``*`` is any run of characters, ``?`` any one."""
    return _compiled(pattern).fullmatch(name) is not None


@functools.lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    """Of thousands of tables each is compared with each item, at each look at the catalog."""
    return re.compile("".join(".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern), re.DOTALL)


def is_pattern(item: str) -> bool:
    """Whether an item of `tables` is a pattern, not one table's name."""
    return bool(set("*?") & set(item))


def named(items: Iterable[str]) -> list[str]:
    """Return the items of `tables` that are one table's name."""
    return [item for item in items if not is_pattern(item) and not item.startswith(LEFT_OUT)]


def chooses(items: Iterable[str], name: str) -> bool:
    """Whether items of `tables` name ``schema.table``: one of them, and none that begins with !."""
    items = tuple(items)
    return not leaves_out(items, name) and any(matches(item, name) for item in items if not item.startswith(LEFT_OUT))


def leaves_out(items: Iterable[str], name: str) -> bool:
    """Whether one of the items of `tables` that begin with ! names ``schema.table``."""
    return any(matches(item[1:], name) for item in items if item.startswith(LEFT_OUT))


def splits(name: str) -> list[tuple[str, str]]:
    """Return each schema and table that ``schema.table`` may be of: in the names of both there may be dots."""
    return [(name[:at], name[at + 1 :]) for at, c in enumerate(name) if c == "." and 0 < at < len(name) - 1]
