"""Paths of apply.yaml are local, or URIs that only Hadoop's file systems reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.config.apply_config import StoreConfig
from cdc.model.errors import ConfigError
from spark_apply.model.store import open_store
from spark_apply.spark.paths import local, located

HERE = Path.cwd()


@pytest.mark.parametrize(
    ("place", "as_spark_takes_it", "path"),
    [
        ("./warehouse", f"{HERE}/warehouse", HERE / "warehouse"),
        ("/a/b", "/a/b", Path("/a/b")),
        ("a:b", f"{HERE}/a:b", HERE / "a:b"),
        ("file:///a/b%20c/", "file:///a/b%20c", Path("/a/b c")),
        ("file:/a/b", "file:/a/b", Path("/a/b")),
        ("hdfs://namenode:8020/a", "hdfs://namenode:8020/a", None),
        ("hdfs:/a", "hdfs:/a", None),
        ("s3a://bucket/a/", "s3a://bucket/a", None),
        ("file://another/a", "file://another/a", None),
    ],
)
def test_a_place(place: str, as_spark_takes_it: str, path: Path | None) -> None:
    assert located(place) == as_spark_takes_it
    assert local(place) == path


@pytest.mark.parametrize("place", ["file:///a/b c", "s3a://bucket/a", "x/y"])
def test_what_spark_was_told_is_the_same_place(place: str) -> None:
    assert local(located(place)) == local(place)
    assert located(located(place)) == located(place)


def test_an_index_is_refused_where_only_hadoop_reaches() -> None:
    """It was a folder of that name here before."""
    config = StoreConfig(type="tantivy", path="s3a://bucket/search")
    with pytest.raises(ConfigError, match=r"stores\.search\.path: an index lies on a disk of the machine"):
        open_store(config, name="search", prefix="p", spark=None)
