"""What is published of a table's columns: which of them, and which without their values. A part of connector.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cdc.config.published.encryption import EncryptRule
from cdc.model.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class HashRule:
    """Columns whose values are published as a keyed hash: equal values stay equal, and nobody reads them."""

    columns: tuple[str, ...]
    salt: str = field(repr=False)
    """The key of HMAC-SHA256. Who knows it can find out short values by trying."""

    def __post_init__(self) -> None:
        if not self.columns:
            raise ConfigError("columns is empty", hint="columns: [phone]")
        if not self.salt:
            raise ConfigError("salt is empty", hint='salt: "${file:/run/secrets/salt}", with a long random text in it')


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRules:
    """What happens to the columns of a table before anything of them is published."""

    exclude: tuple[str, ...] = ()
    """Columns that no event has."""
    include: tuple[str, ...] = ()
    """The only columns that events have, besides the key's."""
    mask: tuple[str, ...] = ()
    """Columns whose values are published as asterisks."""
    hash: HashRule | None = None
    truncate: Mapping[str, int] = field(default_factory=dict)
    """Column of text -> how many characters of it are published."""
    encrypt: EncryptRule | None = None

    def __post_init__(self) -> None:
        hashed = self.hash.columns if self.hash is not None else ()
        encrypted = self.encrypt.columns if self.encrypt is not None else ()
        named = [*self.exclude, *self.mask, *hashed, *self.truncate, *encrypted]
        if not named and not self.include:
            raise ConfigError("no column is named", hint="exclude: [password]")
        if self.exclude and self.include:
            raise ConfigError("exclude and include do not go together", hint="keep one of them")
        twice = sorted({name for name in named if named.count(name) > 1})
        if twice:
            raise ConfigError(f"{', '.join(twice)} is named twice", hint="one rule for each column")
        unseen = [name for name in named if name not in self.include] if self.include else []
        if unseen:
            raise ConfigError(f"include leaves {', '.join(unseen)} out, which has a rule", hint="keep one of the two")
        for name, size in self.truncate.items():
            if size < 1:
                raise ConfigError(f"truncate.{name}: {size} is out of range", hint="how many characters, 1 or more")

    @property
    def changed(self) -> tuple[str, ...]:
        """The columns whose values are not published as they are."""
        hashed = self.hash.columns if self.hash is not None else ()
        return (*self.mask, *hashed, *self.truncate, *(self.encrypt.columns if self.encrypt is not None else ()))
