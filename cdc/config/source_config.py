"""`source` of a connector's file: a database, and what is captured of it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from cdc.config.published.column_rules import ColumnRules
from cdc.config.published.outbox import OutboxConfig
from cdc.config.published.where import parse
from cdc.config.requirement import require
from cdc.config.table_patterns import LEFT_OUT, chooses, is_pattern, leaves_out, matches
from cdc.config.yaml.yaml_binding import BOUND_AS
from cdc.model.errors import ConfigError

_SLOT = re.compile(r"[a-z0-9_]{1,63}")

ON_HOLE = ("reread", "stop")
SHORTEST_MASTER: Final = 32
"""Characters of a master key: a text of fewer could be guessed."""

MEANINGLESS: Final = {
    "postgres": ("server_id",),
    "mysql": ("slot", "publication"),
    "triggers": ("slot", "publication", "server_id"),
    "etcd": ("slot", "publication", "server_id"),
}
"""Keys that mean nothing to a source, by its type."""
_OF_SCHEME: Final = {
    "postgres": ("postgres", "triggers"),
    "postgresql": ("postgres", "triggers"),
    "mysql": ("mysql", "triggers"),
    "mariadb": ("mysql", "triggers"),
    "sqlite": ("triggers",),
    "etcd": ("etcd",),
}
"""The types of a source that go with how its URL begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPrefix:
    """What a table of etcd is made of: all keys that begin with `prefix`."""

    prefix: str
    text: bool
    """Whether keys and values are text; else they are bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedTable:
    """An item of `tables` that names the key columns, where the table has no primary key or another key is wanted.

    On etcd it names the prefix of the keys that are the table.
    """

    table: str
    key: tuple[str, ...] = ()
    prefix: str | None = None
    """etcd: the table's keys begin with it; empty: all keys there are."""
    text: bool = False
    """etcd: keys and values are text, and come as strings; else they are bytes, and come as base64."""

    def __post_init__(self) -> None:
        require(
            not is_pattern(self.table) and not self.table.startswith(LEFT_OUT),
            f"table: “{self.table}” is a pattern",
            "a key is of one table alone",
        )
        require(self.key or self.prefix is not None, "key is empty", "key: [id]")
        require(not (self.key and self.prefix is not None), "key and prefix exclude each other", "keep one of them")
        require(not self.text or self.prefix is not None, "text means nothing without a prefix", "leave it out")
        require(len(set(self.key)) == len(self.key), "key names a column twice", "keep one of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """A database and the tables to capture in it."""

    type: str
    url: str = field(repr=False)
    tables: tuple[str, ...] = field(metadata={BOUND_AS: tuple[str | KeyedTable, ...]})
    """Names and patterns; those that begin with ! leave tables out. An item may be a `KeyedTable`: its name is kept
    here, its key in `keys`."""
    slot: str | None = None
    publication: str | None = None
    messages: bool = True
    """Whether what applications write into the log (pg_logical_emit_message) becomes events too."""
    server_id: int | None = None
    """MySQL: the server id that the connector registers with; unique. None: made from the connector's name."""
    on_hole: str = "reread"
    """What happens where the log does not say what was changed: the rows or tables concerned are read again
    (``reread``), or the connector does ``stop``."""
    heartbeat_s: float = 10.0
    """How often a heartbeat is written into the log of a source that others write to; 0: never."""
    columns: Mapping[str, ColumnRules] = field(default_factory=dict)
    """What is published of columns, by table or pattern."""
    where: Mapping[str, str] = field(default_factory=dict)
    """The condition for a row to be published, by table or pattern."""
    master_key: str | None = field(default=None, repr=False)
    """What wraps the keys of encrypted columns: a long random text, from a secret file."""
    outbox: OutboxConfig | None = None
    """The captured table that is an outbox."""
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    """Options for sources of third parties."""
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict, metadata={BOUND_AS: None})
    """Key columns by table, where an item of `tables` gives them."""
    prefixes: Mapping[str, KeyPrefix] = field(default_factory=dict, metadata={BOUND_AS: None})
    """etcd: what each table is made of, as the items of `tables` give it."""

    def __post_init__(self) -> None:
        items: tuple[str | KeyedTable, ...] = self.tables
        keyed = [item for item in items if isinstance(item, KeyedTable)]
        keys = {item.table: item.key for item in keyed if item.key}
        for item in keyed:
            twice = item.key and keys[item.table] != item.key
            require(not twice, f"tables: {item.table} is given two keys", "keep one of them")
        self._take_prefixes(items, keyed)
        object.__setattr__(self, "keys", {**self.keys, **keys})
        object.__setattr__(self, "tables", tuple(i.table if isinstance(i, KeyedTable) else i for i in items))
        require(self.url, "url is empty", "url: postgresql://user:${PASSWORD}@host:5432/database")
        scheme = self.url.partition(":")[0]
        types = _OF_SCHEME.get(scheme, (self.type,))
        require(
            self.type in types or self.type not in MEANINGLESS,
            f"type is {self.type}, and url begins with {scheme}://",
            f"type: {types[0]}; or another url",
        )
        named = {"sqlite": "main", "mysql": "shop", "mariadb": "shop"}.get(scheme, "public")
        require(self.tables, "tables is empty", f"tables: [{named}.orders]")
        for pattern in self.tables:
            schema, dot, table = pattern.removeprefix(LEFT_OUT).partition(".")
            hint = f"{named}.{'orders' if dot or schema == '*' else schema}, or {named}.*"
            require(schema and dot and table, f"tables: “{pattern}” is not schema.table", hint)
            require(
                is_pattern(pattern) or pattern.startswith(LEFT_OUT) or self.captures(pattern),
                f"tables: {pattern} is named and left out",
                "keep one of the two",
            )
        require(
            any(not pattern.startswith(LEFT_OUT) for pattern in self.tables),
            "tables leaves tables out and names none",
            'tables: ["public.*", "!public.tmp_*"]',
        )
        require(self.on_hole in ON_HOLE, f"on_hole: “{self.on_hole}” is not known", f"one of {', '.join(ON_HOLE)}")
        require(
            self.slot is None or _SLOT.fullmatch(self.slot),
            f"slot: “{self.slot}” is not a slot's name",
            "lower-case letters, digits and _, at most 63",
        )
        for name in MEANINGLESS.get(self.type, ()):
            require(
                getattr(self, name) is None, f"{name} means nothing to a source of type {self.type}", "leave it out"
            )
        require(
            self.server_id is None or 0 < self.server_id < 1 << 32,
            f"server_id: {self.server_id} is out of range",
            "1 to 4294967295, another than that of every server and replica",
        )
        require(
            0 <= self.heartbeat_s < math.inf, f"heartbeat_s: {self.heartbeat_s} is out of range", "seconds; 0 for never"
        )
        self._check_rules()

    def _take_prefixes(self, items: tuple[str | KeyedTable, ...], keyed: list[KeyedTable]) -> None:
        """Keep what each table of etcd is made of. No key belongs to two tables."""
        of = {item.table: KeyPrefix(prefix=item.prefix, text=item.text) for item in keyed if item.prefix is not None}
        prefixes = {**self.prefixes, **of}
        object.__setattr__(self, "prefixes", prefixes)
        if self.type != "etcd":
            named = next(iter(prefixes), None)
            hint = "leave it out; source.type: etcd has prefixes"
            require(named is None, f"tables: {named} has a prefix, which means nothing to type {self.type}", hint)
            return
        names = [item if isinstance(item, str) else item.table for item in items]
        names = [name.removeprefix(LEFT_OUT) for name in names]
        for name in names:
            hint = "tables: [{table: config.services, prefix: /services/}]"
            require(name in prefixes, f"tables: “{name}” has no prefix, and etcd has no tables of its own", hint)
            require(names.count(name) == 1, f"tables: {name} is given twice", "keep one of them")
        for name, one in prefixes.items():
            for other_name, other in prefixes.items():
                require(
                    name == other_name or not other.prefix.startswith(one.prefix),
                    f"tables: the prefixes of {name} and {other_name} overlap: a key would belong to both",
                    "keep one of them, or make both longer",
                )

    def _check_rules(self) -> None:
        outbox = self.outbox.table if self.outbox is not None else None
        require(
            outbox is None or (not is_pattern(outbox) and self.captures(outbox)),
            f"outbox.table: “{outbox}” is not captured",
            f"add it to tables, which has {', '.join(self.tables)}",
        )
        ruled = [name for name in (*self.columns, *self.where) if outbox is not None and matches(name, outbox)]
        require(not ruled, f"{outbox} is the outbox, and has rules ({', '.join(ruled)})", "leave it out of the rules")
        rules: dict[str, Iterable[str]] = {"columns": self.columns, "where": self.where}
        for part, names in rules.items():
            for name in names:
                require(
                    is_pattern(name) or self.speaks_of(name),
                    f"{part}: “{name}” is not captured",
                    f"add it to tables, which has {', '.join(self.tables)}",
                )
        encrypts = [name for name, of in self.columns.items() if of.encrypt is not None]
        require(
            not encrypts or self.master_key is not None,
            f"columns: {', '.join(encrypts)} has encrypt, and master_key is missing",
            'master_key: "${file:/run/secrets/master}", with what this prints: openssl rand -hex 32',
        )
        require(
            self.master_key is None or len(self.master_key.strip()) >= SHORTEST_MASTER,
            f"master_key has fewer than {SHORTEST_MASTER} characters",
            "a long random text, which nobody can guess: openssl rand -hex 32",
        )
        for name, text in self.where.items():
            try:
                parse(text)
            except ConfigError as exc:
                raise ConfigError(f"where.{name}: {exc.message}", hint=exc.hint) from exc

    def captures(self, table: str) -> bool:
        """Whether `tables` names ``schema.table``."""
        return chooses(self.tables, table)

    def speaks_of(self, table: str) -> bool:
        """Whether `tables` names ``schema.table``, or leaves it out: what is said of one that is may stay."""
        return self.captures(table) or leaves_out(self.tables, table)
