"""Change data capture: a database log in, keyed change events out.

    for transaction in cdc.follow("postgresql://…", tables=["public.orders"], position="orders.pos"): ...
    for batch in cdc.follow("connector.yaml", since="2026-11-24T00:00Z").arrow(rows=50_000): ...
    cdc.table("connector.yaml", "public.orders").to_pandas()
    cdc.spark(spark, "connector.yaml", "public.orders")
    cdc.inbox("mailer", connection, kafka="127.0.0.1:9092", topics=["outbox.event.order"])

docs/library.md has all of it. A name is loaded when it is first used, so that `import cdc` costs nothing.
"""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = [
    "ERASED",
    "UNCHANGED",
    "CdcError",
    "Change",
    "ConfigError",
    "Decrypt",
    "Follow",
    "GapError",
    "Inbox",
    "OperatorError",
    "Received",
    "RetryableError",
    "Table",
    "Topics",
    "Transaction",
    "decrypt",
    "follow",
    "inbox",
    "spark",
    "table",
]

_WHERE = {
    "ERASED": "cdc.library.decrypt",
    "Decrypt": "cdc.library.decrypt",
    "decrypt": "cdc.library.api",
    "UNCHANGED": "cdc.library.values",
    "CdcError": "cdc.model.errors",
    "Change": "cdc.library.changes",
    "ConfigError": "cdc.model.errors",
    "Follow": "cdc.library.follow",
    "GapError": "cdc.model.errors",
    "Inbox": "cdc.library.inbox.inbox",
    "OperatorError": "cdc.model.errors",
    "Received": "cdc.library.inbox.inbox",
    "RetryableError": "cdc.model.errors",
    "Table": "cdc.library.table",
    "Topics": "cdc.library.topics",
    "Transaction": "cdc.library.changes",
    "follow": "cdc.library.api",
    "inbox": "cdc.library.api",
    "spark": "cdc.library.api",
    "table": "cdc.library.api",
}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - `import cdc` costs nothing

    found: object = getattr(import_module(_WHERE[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
