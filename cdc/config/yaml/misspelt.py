"""What a key that no file has was meant to be: one that is misspelt, of another section, or of another tool."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Final

_NEAR: Final = 0.6
_NEARER: Final = 0.85
"""Of a name that may be another tool's: `snapshot.fetch.size` is no misspelt key of ours."""
_DEBEZIUM: Final = "docs/debezium.md says what takes the place of each option of Debezium's"
_LOGIN: Final = (
    "where the database is and who logs in is one key: url: postgresql://user:${PASSWORD}@host:5432/database"
)
_TABLES: Final = 'tables: [public.orders, "public.item*", "!public.item_old"]'
_CONNECT: Final = "this is a file for Kafka Connect; docs/start.md has one for cdc run"
_OF_OTHERS: Final = {
    **dict.fromkeys(
        ("brokers", "broker", "kafka_brokers", "kafka", "servers"), "bootstrap_servers: host1:9092,host2:9092"
    ),
    **dict.fromkeys(("host", "hostname", "port", "user", "username", "password", "database", "dbname", "dsn"), _LOGIN),
    **dict.fromkeys(
        ("table_include_list", "table_exclude_list", "schema_include_list", "table_list", "include"), _TABLES
    ),
    **dict.fromkeys(("database_include_list", "exclude", "whitelist"), _TABLES),
    **dict.fromkeys(("connector_class", "config", "tasks_max", "connectors", "transforms"), _CONNECT),
    "column_include_list": "columns: {public.orders: {include: [id, status]}}",
    "column_exclude_list": "columns: {public.orders: {exclude: [note]}}",
    "message_key_columns": "tables: [{table: public.orders, key: [id]}]",
    "snapshot_mode": "leave it out: tables are read once, before the log; cdc snapshot start reads them again",
    "<<": "merge keys are not read: write the keys out, or name the whole value by an alias, *name",
}
"""What other tools call what ours have, in our spelling, and what to write."""


def meant(written: str, allowed: Sequence[str], *, at: str, elsewhere: Mapping[str, Sequence[str]]) -> str:
    """Return the hint for a key that is not known below `at`; `elsewhere` are the keys of each section."""
    spelt = _spelt(written)
    ours = {_spelt(key): key for key in allowed}
    if spelt in ours:
        return f"did you mean {ours[spelt]}?"
    section = next((name for name, keys in elsewhere.items() if spelt in keys and name != at), None)
    if section is not None:
        return (
            f"{spelt} is a key of {section}" if section else f"{spelt} is a key of the top level: indent it by nothing"
        )
    said = _OF_OTHERS.get(spelt) or (_LOGIN if at == "source" and spelt.startswith("database_") else None)
    if said is not None and (said is not _LOGIN or at in ("", "source")):
        return said
    dotted = "." in written  # as Debezium's names are, and none of ours
    near = difflib.get_close_matches(spelt, ours, n=1, cutoff=_NEARER if dotted else _NEAR)
    if near:
        return f"did you mean {ours[near[0]]}?"
    page = f"{_DEBEZIUM}; " if dotted else ""
    return f"{page}allowed here: {', '.join(allowed)}"


def _spelt(key: str) -> str:
    """Write a key as ours are: ``topicPrefix``, ``topic-prefix`` and ``TOPIC.PREFIX`` are ``topic_prefix``."""
    return re.sub(r"[-. ]", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key)).lower()
