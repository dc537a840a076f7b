"""Which columns are encrypted under a key of whom they are about. A part of connector.yaml."""

from __future__ import annotations

from dataclasses import dataclass

from cdc.config.requirement import require


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptRule:
    """Columns whose values are published encrypted, under a key that can be erased by itself."""

    columns: tuple[str, ...]
    by: str | None = None
    """The column of the table's key that says whom a row is about; None: the whole key does."""
    subject: str | None = None
    """Whose name the values of `by` are. Tables of one name have one key for each value; None: the table's own name."""

    def __post_init__(self) -> None:
        require(self.columns, "columns is empty", "columns: [email]")
        require(self.by != "", "by names no column", "by: id; or leave it out: the table's whole key")
        require(self.subject != "", "subject is empty", "subject: customer; or leave it out: the table's own name")
