"""A table's log is a topic beside the table's own, with the same records except tombstones. Pure."""

from __future__ import annotations


def log_of(topic: str) -> str:
    """Name the log topic of a table's topic. A table's has two dots and its log's three, so no topic is both."""
    prefix, _, table = topic.partition(".")
    return f"{prefix}.log.{table}"
