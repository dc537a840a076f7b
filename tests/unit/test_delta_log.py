"""A Delta table's properties, read from its log without Spark, and the names its columns have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from pyarrow import parquet

from cdc.model.change import Kind
from spark_apply.model.target_table import TargetColumn, TargetTable
from spark_apply.stores.delta.columns import stored
from spark_apply.stores.delta.log import DeltaLog, properties_in_folder


def _commit(log: Path, version: int, **properties: str) -> None:
    lines = [{"commitInfo": {"operation": "WRITE", "userMetadata": '{"metaData"'}}]
    lines += [{"metaData": {"id": "x", "configuration": properties}}] if properties else []
    (log / f"{version:020}.json").write_text("\n".join(map(json.dumps, [*lines, {"add": {"path": "p"}}])))


def _checkpoint(log: Path, version: int, part: str = "", **properties: str) -> None:
    kind = pa.struct([("configuration", pa.map_(pa.string(), pa.string()))])
    rows = [None, {"configuration": list(properties.items())} if properties else None]
    name = f"{version:020}.checkpoint{part}.parquet"
    parquet.write_table(pa.table({"metaData": pa.array(rows, kind)}), log / name)


def test_the_newest_properties_win(tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    assert properties_in_folder(log) is None
    log.mkdir()
    assert properties_in_folder(log) is None
    _commit(log, 0, a="1")
    _commit(log, 9, a="9")
    _commit(log, 10)
    (log / "00000000000000000010.crc").write_text("{}")
    (log / "_last_checkpoint").write_text("{}")
    assert properties_in_folder(log) == {"a": "9"}
    _checkpoint(log, 10, a="10")
    assert properties_in_folder(log) == {"a": "10"}
    _commit(log, 11)
    assert properties_in_folder(log) == {"a": "10"}
    _checkpoint(log, 11, ".0000000001.0000000002")
    _checkpoint(log, 11, ".0000000002.0000000002", a="11")
    assert properties_in_folder(log) == {"a": "11"}
    _commit(log, 12, a="12")
    assert properties_in_folder(log) == {"a": "12"}


def test_names_that_differ_in_case_alone_are_told_apart() -> None:
    """By order of appearance, which a later version of the table keeps."""
    names = ("Id", "id", "a", "ID", "id_2")
    columns = tuple(TargetColumn(name, Kind("string"), ()) for name in names)
    kept = stored(TargetTable("c", "public", "orders", "t", ("id", "a"), columns, 1))
    assert [column.name for column in kept.columns] == ["Id", "id_2", "a", "ID_3", "id_2_2"]
    assert kept.key == ("id_2", "a")


def test_what_a_commit_is_costs_no_look_at_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked of each commit behind each batch; one that compacts a large table has a line for each file."""

    def lines() -> Iterator[str]:
        yield json.dumps({"commitInfo": {"operation": "OPTIMIZE"}}, separators=(",", ":"))
        raise AssertionError("each further line is a call into Java")

    java: Any = MagicMock()
    java.scala.jdk.javaapi.CollectionConverters.asJava.return_value = lines()
    for name in ("_jvm", "_java", "_delta", "_file_system"):
        monkeypatch.setattr(DeltaLog, name, java)
    assert DeltaLog(java, "t").commit_info(3) == {"operation": "OPTIMIZE"}
