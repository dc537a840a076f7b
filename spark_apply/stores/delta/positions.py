"""Finds and keeps the applied position of a table's states."""

from __future__ import annotations

import json
from typing import Any, Final

from spark_apply.stores.delta.log import DeltaLog, Properties
from spark_apply.stores.lake.properties import APPLIED

RESTORED: Final = "RESTORE"
_PUT_BACK = ("Manual Update", RESTORED)
"""Operations in the history after which the table property alone has the position."""


def position_at(log: DeltaLog, snapshot: Any) -> str | None:  # noqa: ANN401 - Java's Snapshot
    """Return the applied position of a state, from the newest commit that has one."""
    for version in range(snapshot.version(), -1, -1):
        info = log.commit_info(version)
        if info is None or info.get("operation") in _PUT_BACK:
            break
        said = str(info.get("userMetadata") or "")
        if said.startswith(f"{APPLIED} "):
            return said.removeprefix(f"{APPLIED} ")
        if APPLIED in json.loads(info.get("operationParameters", {}).get("properties", "{}")):
            break
    found = json.loads(snapshot.metadata().json())["metaData"].get("configuration", {}).get(APPLIED)
    return None if found is None else str(found)


def set_position(properties: Properties, position: str | None) -> None:
    """Note a position among a table's properties, or that there is none."""
    if position is None:
        properties.pop(APPLIED, None)
    else:
        properties[APPLIED] = position
