"""A table's log is a topic beside the table's own, with the same records except tombstones. Pure."""

from __future__ import annotations


def log_of(topic: str) -> str:
    """Name the log topic of a table's topic. A table's has two dots and its log's three, so no topic is both.

    A routed topic, with one dot, has no log: what stands for its name is one that no topic has, and no table's either.
    """
    prefix, _, table = topic.partition(".")
    if "." not in table:
        return f"{prefix}.log..{table}"
    return f"{prefix}.log.{table}"
