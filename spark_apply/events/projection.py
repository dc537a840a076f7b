"""Projects a table by apply.yaml: columns, names, filter and partitions; expressions are not checked here. Pure.

Key columns may be renamed: their values stay, so the guard by key and position works under any name.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from cdc.config.apply_config import ApplyTable
from cdc.model.errors import CdcError, ConfigError, OperatorError
from cdc.model.suggestion import did_you_mean
from spark_apply.model.target_table import RESERVED, Partition, Projection, TargetTable, Version, derived

_FUNCTIONS: Mapping[str, bool] = {
    "years": False,
    "months": False,
    "days": False,
    "hours": False,
    "bucket": True,
    "truncate": True,
}
"""The functions of `partition_by`, and whether they take a width."""
_CALL = re.compile(r"\s*([A-Za-z]+)\s*\(\s*(?:(\d+)\s*,\s*)?(.*?)\s*\)\s*")


def projected_table(versions: Sequence[Version], settings: ApplyTable) -> TargetTable:
    """Return the table that copies hold, without computed columns, whose types Spark gives (`resolved`).

    Raises ConfigError for a shape that the table cannot have, OperatorError as `derived` does.
    """
    source = derived(versions, settings, rekeys=True)
    at = f"tables.{source.qualified}"
    _check_names(at, source, settings)
    columns = tuple(
        replace(column, name=settings.rename[column.name], origin=column.name)
        if column.name in settings.rename
        else column
        for column in source.columns
        if not settings.columns or column.name in (*settings.columns, *source.key)
    )
    there = (*(column.name for column in columns), *settings.computed)
    mark = fingerprint(settings)
    return replace(
        source,
        key=tuple(settings.rename.get(name, name) for name in source.key),
        columns=columns,
        target=settings.target,
        partition_by=tuple(_partition(f"{at}.partition_by", text, there) for text in settings.partition_by),
        projection=Projection(source, mark, settings.where, tuple(settings.computed.items())) if mark else None,
    )


def followed_table(
    versions: Sequence[Version], settings: ApplyTable, check: Callable[[TargetTable], TargetTable] = lambda table: table
) -> TargetTable:
    """Return `projected_table` as `check` gives it, and raise OperatorError where the source's table is to blame.

    Settings that fitted an earlier version of it are not wrong: the table has changed since, and it alone cannot go on.
    """
    try:
        return check(projected_table(versions, settings))
    except ConfigError as exc:
        ordered = sorted(versions, key=lambda version: version.number)
        for number in range(len(ordered) - 1, 0, -1):
            with contextlib.suppress(CdcError):
                check(projected_table(ordered[:number], settings))
                break
        else:
            raise
        msg = f"{exc.message}: the source’s table has changed since version {ordered[number - 1].number}"
        raise OperatorError(msg, hint=exc.hint) from exc


def fingerprint(settings: ApplyTable) -> str:
    """Hash the settings that change the rows of copies; the source's changes and the copies' names are not in it."""
    if not (settings.columns or settings.rename or settings.where or settings.computed):
        return ""
    said = [sorted(settings.columns), settings.rename, settings.where, settings.computed]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def _check_names(at: str, source: TargetTable, settings: ApplyTable) -> None:
    known = [column.name for column in source.columns]
    kept = [name for name in known if not settings.columns or name in (*settings.columns, *source.key)]
    for name in settings.columns:
        _require(name, known, f"{at}.columns: {name}: the table has no such column")
    for name in settings.rename:
        _require(name, known, f"{at}.rename.{name}: the table has no such column")
        _require(name, kept, f"{at}.rename.{name}: `columns` leaves this column out")
    taken: dict[str, str] = {}
    named = [*((settings.rename.get(name, name), name) for name in kept), *((name, name) for name in settings.computed)]
    for name, of in named:
        if name.startswith(RESERVED):
            raise ConfigError(f"{at}: column {name}: names that begin with {RESERVED} are ours", hint="choose another")
        if name in taken:
            what = f"computed.{of}" if of in settings.computed else f"column {of}"
            msg = f"{at}: {what} and column {taken[name]} would both be {name} in the copy"
            raise ConfigError(msg, hint="choose another name for one of them, with rename or under computed")
        taken[name] = of
    if settings.target is not None and settings.target.startswith(RESERVED):
        raise ConfigError(f"{at}.target: names that begin with {RESERVED} are ours", hint="choose another")


def _partition(at: str, text: str, columns: Sequence[str]) -> Partition:
    call = _CALL.fullmatch(text)
    if call is None or text in columns:
        _require(text, columns, f"{at}: {text}: the copy has no such column")
        return Partition(text)
    function, width, column = call.groups()
    if function not in _FUNCTIONS or _FUNCTIONS[function] != (width is not None) or width == "0":
        hint = did_you_mean(function, _FUNCTIONS, "days(at), bucket(16, id), truncate(4, x)")
        raise ConfigError(f"{at}: {text}: this is no way to partition", hint=hint)
    _require(column, columns, f"{at}: {text}: the copy has no column {column}")
    return Partition(column, function, None if width is None else int(width))


def _require(name: str, known: Iterable[str], what: str) -> None:
    there = list(known)
    if name not in there:
        raise ConfigError(what, hint=did_you_mean(name, there, f"columns: {', '.join(there)}"))
