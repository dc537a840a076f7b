"""Keeps copies of a table in folders within its own, and exchanges them in one commit that takes over their files."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Iterable
from typing import Any

from pyspark.sql import types as T  # noqa: N812 - the name everyone uses

from cdc.model.errors import OperatorError
from spark_apply.model.identity import stamp
from spark_apply.model.store import Due
from spark_apply.model.target_table import TargetTable
from spark_apply.stores.delta.columns import VECTORS, with_columns, with_types
from spark_apply.stores.delta.log import LOG, DeltaLog, Properties
from spark_apply.stores.delta.positions import position_at, set_position
from spark_apply.stores.lake.properties import (
    APPLIED,
    CAUGHT_UP,
    DUE,
    IDENTITY,
    MARK,
    PREVIOUS_IDENTITY,
    REPLACED_AT,
)

_PREVIOUS = "cdc.previous"
_BESIDE, _KEPT = "cdc-copy-", "_cdc_previous-"
_POSITION, _SCHEMA = "position", "schema"


def begin_beside(log: DeltaLog, others: Iterable[T.StructField]) -> str:
    """Make an empty table in a folder of its own, and remove those of unfinished rebuilds; return the folder's name.

    It has the live one's columns, of which `others` have other types.
    """
    _remove_leftovers(log)
    copy = f"{_BESIDE}{uuid.uuid4().hex}"
    without = (APPLIED, MARK, DUE, CAUGHT_UP, REPLACED_AT, _PREVIOUS)
    # the names of vectors are relative to their table
    types = {field.name: json.loads(field.dataType.json()) for field in others}
    made = DeltaLog(log.spark, f"{log.path}/{copy}")
    made.create_like(log, lambda had: with_types(had, types), {VECTORS: "false"}, without)
    return copy


def swap_in(log: DeltaLog, copy: str, table: TargetTable, due: Due) -> None:
    """Take over the files of a copy, and the types of its columns, and note those that they replace.

    Raises OperatorError if the copy is gone.
    """
    beside = DeltaLog(log.spark, f"{log.path}/{copy}")
    kept = f"{_KEPT}{uuid.uuid4().hex}.json"
    replaced: list[str | None] = []

    def change(snapshot: Any, properties: Properties) -> list[Any]:  # noqa: ANN401 - Java's Snapshot, actions
        new = beside.snapshot()
        if new.version() < 0:
            msg = f"Delta table {log.path}: another rebuild has taken the place of this one"
            raise OperatorError(msg, hint="the live table is as it was; let one rebuild run at a time")
        old = log.files(snapshot)
        noted = {_POSITION: position_at(log, snapshot), _SCHEMA: snapshot.metadata().schemaString()}
        log.write(kept, [json.dumps(noted), *(action.json() for action in old)])
        replaced[:] = [properties.get(_PREVIOUS)]
        set_position(properties, position_at(beside, new))
        properties.pop(MARK, None)
        now = dt.datetime.now(dt.UTC).isoformat()
        had = properties[IDENTITY]
        properties |= {DUE: due.to_json(), REPLACED_AT: now, _PREVIOUS: kept}
        properties |= {IDENTITY: stamp(table, had), PREVIOUS_IDENTITY: had}
        return [*map(_removed, old), *(_added(log, action.json(), f"{copy}/") for action in beside.files(new))]

    log.commit(change, schema=lambda had: with_columns(had, beside.state().schema))
    for name in (f"{copy}/{LOG}", *filter(None, replaced)):
        log.remove(name)


def replaced_at(log: DeltaLog) -> dt.datetime | None:
    """Return when the previous copy was replaced; None without one."""
    properties = log.properties()
    return dt.datetime.fromisoformat(properties[REPLACED_AT]) if _PREVIOUS in properties else None


def put_previous_back(log: DeltaLog, due: Due) -> None:
    """Take the files of the previous copy back, and the types of its columns. Raises OperatorError if some are gone."""
    being_made(log)  # the folder of the copy that goes out is not one that a rebuild may remove at once
    put_back: list[str] = []
    noted: dict[str, Any] = {}

    def change(snapshot: Any, properties: Properties) -> list[Any]:  # noqa: ANN401 - Java's Snapshot, actions
        kept = properties.pop(_PREVIOUS)
        about, *files = log.read(kept)
        noted.update(_noted(about))
        actions = [_added(log, line) for line in files]
        if not all(map(log.is_there, actions)):
            msg = f"Delta table {log.path}: files of the copy before are gone"
            raise OperatorError(msg, hint="did another hand VACUUM the table? cdc rebuild APPLY.yaml makes new copies")
        put_back[:] = [kept]
        set_position(properties, noted[_POSITION])
        properties.pop(MARK, None)
        properties |= {DUE: due.to_json(), IDENTITY: properties.get(PREVIOUS_IDENTITY) or properties[IDENTITY]}
        return [*map(_removed, log.files(snapshot)), *actions]

    log.commit(change, schema=lambda had: with_columns(had, noted[_SCHEMA] or had))
    for name in put_back:
        log.remove(name)


def previous_files(log: DeltaLog) -> list[Any]:
    """Return the files of the previous copy."""
    name = log.properties().get(_PREVIOUS)
    return [] if name is None else [_added(log, line) for line in log.read(name)[1:]]


def _noted(line: str) -> dict[str, Any]:
    """Read what stands above the files of the previous copy; an earlier release has noted its position alone."""
    found = json.loads(line)
    return found if isinstance(found, dict) else {_POSITION: found, _SCHEMA: None}


def being_made(log: DeltaLog) -> list[str]:
    """Return the folders of copies that are not swapped in, and end the swap of those that are.

    A rebuild that was killed behind its commit has left the log of its copy. As long as that is there, the folder is
    taken for one that is being made, of which no file goes.
    """
    made = [name for name in log.folders() if DeltaLog(log.spark, f"{log.path}/{name}").exists()]
    if not made:
        return []
    used = {action.path().split("/", 1)[0] for action in (*log.files(log.snapshot()), *previous_files(log))}
    for name in made:
        if name.startswith(_BESIDE) and name in used:
            log.remove(f"{name}/{LOG}")
    return [name for name in made if not name.startswith(_BESIDE) or name not in used]


def _remove_leftovers(log: DeltaLog) -> None:
    """Remove what unfinished rebuilds have left; VACUUM removes files that were swapped in and replaced."""
    for name in being_made(log):
        if name.startswith(_BESIDE):
            log.remove(name)
    kept = log.properties().get(_PREVIOUS)
    for name in log.notes(_KEPT):
        if name != kept:
            log.remove(name)


def _added(log: DeltaLog, text: str, below: str = "") -> Any:  # noqa: ANN401 - Java's AddFile
    about = json.loads(text)
    about["add"] |= {"path": below + about["add"]["path"], "dataChange": True}
    return log.action(about)


def _removed(action: Any) -> Any:  # noqa: ANN401 - Java's AddFile, RemoveFile
    return action.remove()
