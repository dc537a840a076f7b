"""Logs of tables: topics beside the tables' own, with the same records but for tombstones. Pure."""

from __future__ import annotations


def log_of(topic: str) -> str:
    """The log's topic of a table's. A table's has two dots and its log's three, so none is both."""
    prefix, _, table = topic.partition(".")
    return f"{prefix}.log.{table}"
