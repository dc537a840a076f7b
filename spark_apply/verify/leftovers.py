"""Says how long derived stores keep what they had of a row after its delete has been applied. Starts no Spark.

A store's readers no longer see the row; its files may have it: earlier states of a lake, versions of a history, space
that a server has not used again. Nothing is removed here.
"""

from __future__ import annotations

import glob
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from cdc.config.config import ApplyConfig
from cdc.model.errors import ConfigError, OperatorError
from spark_apply.events.quarantine import chosen_entries
from spark_apply.job.checkpoint.files import newest, noted_job
from spark_apply.model.target_table import settings_of
from spark_apply.model.upkeep import upkeep_of
from spark_apply.spark.paths import local

_LAKES: Final = ("iceberg", "delta")
_KEEPS: Final[Mapping[str, str]] = {
    "postgres": "the server keeps a deleted row's bytes in the table's file, VACUUM or not, until something else is "
    "written over them, and in its WAL, replicas and backups",
    "opensearch": "a deleted document's bytes stay until segments are merged",
    "tantivy": "a deleted document's bytes stay until segments are merged",
}


def leftovers(config: ApplyConfig, table: str, key: str) -> list[dict[str, Any]]:
    """Return a place for each store that follows the table, as `sinks.erasure.places` has it, and for the quarantine.

    Raises ConfigError where the job does not follow the table.
    """
    found = settings_of(config.tables, table)
    if found is None:
        raise ConfigError(f"job {config.name} does not follow {table}", hint=f"it has {', '.join(config.tables)}")
    history = found.mode == "history"
    stores = (_store(config, table, name, history=history) for name in found.stores)
    return [*stores, *_replays(config, table), *_quarantine(config, table, key)]


def _store(config: ApplyConfig, table: str, name: str, *, history: bool) -> dict[str, Any]:
    store = config.stores[name]
    place = f"store {name} of {config.name} ({store.type})"
    if history:
        return _place(
            place, "kept", "its history has every version of the row: take the copy out, or its rows, by hand"
        )
    if store.type not in _LAKES:
        again = (
            f"cdc rebuild APPLY.yaml --table {shlex.quote(table)} --store {shlex.quote(name)}, twice, leaves no "
            "file of it: the first keeps what was there for --rollback, the second removes that"
        )
        keeps = _KEEPS.get(store.type, "it is not known what its files keep")
        return _place(place, "cannot be proved", f"{keeps}; {again}")
    upkeep = upkeep_of(store, name)
    if upkeep is None:
        return _place(
            place, "kept", "earlier states have the row, and upkeep is off: options: {upkeep: {keep_hours: 24}}"
        )
    what = (
        f"files with the row stay until upkeep has compacted them, with {upkeep.files} small ones at the latest, and "
        f"{upkeep.keep_hours} hours more as an earlier state; a copy that cdc rebuild has replaced stays until the next"
    )
    if store.type == "delta":
        what += "; beginnings of its values are in the log, until Delta's next checkpoint after that"
    else:
        what += "; where gc.enabled of the table is false, until another hand removes old states"
    return _place(place, "cannot be proved", what)


def _replays(config: ApplyConfig, table: str) -> Iterator[dict[str, Any]]:
    """A replay that has ended reads no delete; on this disk its checkpoint lies beside the job's."""
    place = local(config.checkpoint)
    if place is None:
        return
    for folder in sorted(place.parent.glob(f"{glob.escape(place.name)}-*")):
        name = folder.name.removeprefix(f"{place.name}-")
        try:
            begun = newest(None, str(folder))
            if begun is None or table not in begun[1] or noted_job(None, begun[0]) != config.replay_name(name):
                continue
        except OperatorError as exc:
            yield _place(f"replay {name} of {config.name}", "cannot be proved", f"if it is one: {exc.message}")
            continue
        what = (
            f"its copies keep the row until it has read the delete, as cdc replay APPLY.yaml --as {name} --once does; "
            "then they keep what is said of their stores above. Who needs it no more takes copies and checkpoint out"
        )
        yield _place(f"replay {name} of {config.name} ({', '.join(sorted(begun[1][table]))})", "cannot be proved", what)


def _quarantine(config: ApplyConfig, table: str, key: str) -> Iterator[dict[str, Any]]:
    """The quarantine has keys and no values; the event itself is in the topic."""
    place = f"quarantine of {config.name}"
    held = chosen_entries(config, table=table, key=key)
    if held:
        what = f"{len(held)} entries name the key: cdc quarantine retry APPLY.yaml"
        yield _place(place, "kept", what)
    else:
        yield _place(place, "gone", "no entry names the key")


def _place(place: str, verdict: str, what: str) -> dict[str, Any]:
    return {"place": place, "verdict": verdict, "what": what, "by_ms": None}
