"""A position that was exported as JSON: `cdc offsets export` writes it, `cdc offsets import` reads it. Pure.

It has a checksum. A place in the log that somebody has typed in may lie within a transaction, and nothing would tell:
so only what was a position once is taken, and an edited file is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

import orjson

from cdc.model.errors import ConfigError
from cdc.model.hints import CONNECTOR
from cdc.model.state import State, checksum_of

_FORMAT: Final = 1
Of = Literal["connector", "apply"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """Where a connector or an apply job stood."""

    of: Of
    name: str
    prefix: str
    at_ms: int
    """When it was exported."""
    identity: Mapping[str, str] = field(default_factory=dict)
    """Of a connector: which server, database and slot the position belongs to."""
    phase: str = ""
    epoch: int = 0
    offset: Mapping[str, Any] = field(default_factory=dict)
    commit: int = 0
    source_ms: int = 0
    tables: tuple[str, ...] = ()
    windows: int = 0
    """Of a connector: how far it had counted what it has read of tables; 0 in files of earlier builds."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """Of an apply job: the identities of the topics."""
    ends: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Of an apply job: up to where each partition was applied, by topic."""
    copies: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Of an apply job: the identities of the copies, by table, then by store."""

    def to_json(self) -> dict[str, Any]:
        """Return the stable JSON of the file."""
        body = {"cdc_offsets": _FORMAT, **asdict(self), "tables": list(self.tables)}
        return {**body, "checksum": checksum_of(body)}

    @classmethod
    def from_json(cls, text: bytes, *, where: str, of: str = CONNECTOR) -> Exported:
        """Read a file. Raises ConfigError for one that is damaged, was edited, or is of a newer version.

        `of` is what hints call the file that it is for.
        """
        hint = f"cdc offsets export {of} > offsets-now.json"
        try:
            body = orjson.loads(text)
            version, checksum = body["cdc_offsets"], body.pop("checksum")
            if version != _FORMAT:
                raise _of_another_release(where, f"of version {version}")
            if checksum != checksum_of(body):
                raise ConfigError(
                    f"{where}: the exported offsets are not as they were written: a position that was edited may lie "
                    "within a transaction",
                    hint=hint,
                )
            del body["cdc_offsets"]
            if unknown := body.keys() - cls.__slots__:
                raise _of_another_release(where, f"with {', '.join(sorted(unknown))}")
            return cls(**{**body, "tables": tuple(body["tables"])})
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise ConfigError(f"{where}: no offsets that were exported", hint=hint) from exc


def _of_another_release(where: str, what: str) -> ConfigError:
    return ConfigError(
        f"{where}: offsets {what} were exported by another release", hint="import them with that release"
    )


def of_state(state: State, *, prefix: str, at_ms: int) -> Exported:
    """Export a connector's position."""
    return Exported(
        of="connector",
        name=state.connector,
        prefix=prefix,
        at_ms=at_ms,
        identity=dict(state.identity),
        phase=state.phase.value,
        epoch=state.epoch,
        offset=dict(state.offset),
        commit=state.commit,
        source_ms=state.source_ms,
        tables=state.tables,
        windows=state.windows,
    )
