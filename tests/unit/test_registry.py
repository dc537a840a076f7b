"""Names to parts: ours, a third party's, and what is said when neither can be had."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc.cli.ending import error_of
from cdc.config import registry
from cdc.config.config import ConnectorConfig
from cdc.config.kafka_config import KafkaConfig
from cdc.config.source_config import KeyedTable, SourceConfig
from cdc.model.errors import ConfigError


def _config(type_: str) -> ConnectorConfig:
    return ConnectorConfig(
        name="c",
        source=SourceConfig(type=type_, url="memory://", tables=("s.t",)),
        sink=KafkaConfig(bootstrap_servers="b:9092", topic_prefix="p"),
    )


THIRD_PARTY = """
from cdc.testing import MemoryLog, MemorySnapshotter, MemorySource

LOG = MemoryLog()
NOT_CALLABLE = 1

def open_source(config):
    return MemorySource(LOG, [])

def open_snapshotter(config):
    return MemorySnapshotter(LOG)
"""


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of a third party, `cdc_oracle_test`."""
    folder = tmp_path / "cdc_oracle_test"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "log.py").write_text(THIRD_PARTY)
    (folder / "alone.py").write_text("def open_source(config): ...")
    (folder / "broken.py").write_text("import a_module_nobody_has")
    (folder / "of_spark.py").write_text("import pyspark")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [n for n in sys.modules if n.startswith("cdc_oracle_test")]:
        del sys.modules[name]


@pytest.mark.filterwarnings("ignore:.* is deprecated. Use files:DeprecationWarning")  # kafka-python, on Python 3.11
def test_our_sources_are_found_by_their_short_names() -> None:
    """Each has a source, a snapshotter, its standing, its check and its log's end; nothing connects yet."""
    for name in registry.SOURCES:
        urls = {"postgres": "postgresql://localhost/d", "mysql": "mysql://localhost", "triggers": "sqlite:///shop.db"}
        table: Any = KeyedTable(table="s.t", prefix="/t/") if name == "etcd" else "s.t"
        config = ConnectorConfig(
            name="c",
            source=SourceConfig(type=name, url=urls.get(name, "etcd://localhost"), tables=(table,)),
            sink=KafkaConfig(bootstrap_servers="b:9092", topic_prefix="p"),
        )
        assert registry.source(config)() is not registry.source(config)()
        assert registry.snapshotter(config)() is not None
        assert callable(registry.standing(config))
        assert callable(registry.check(config))
        assert callable(registry.end(config))
    assert registry.sink(config.sink, "c").topic is not None


def test_a_third_partys_source_is_named_by_its_callable(third_party: Path) -> None:
    """``package.module:callable``; the snapshotter stands beside it."""
    config = _config("cdc_oracle_test.log:open_source")
    assert registry.source(config)().name == "memory"
    assert registry.snapshotter(config)() is not None


@pytest.mark.parametrize(
    ("type_", "message", "hint"),
    [
        ("oracle", "there is no source “oracle”", "known: postgres, mysql, triggers, etcd, or package.module:callable"),
        ("cdc_oracle_test.log:open", "cdc_oracle_test.log:open cannot be loaded", ""),
        ("cdc_oracle_test.none:open", "No module named 'cdc_oracle_test.none'", ""),
        ("cdc_oracle_test.broken:open", "No module named 'a_module_nobody_has'", ""),
        ("a_package_nobody_has:open", "cannot be loaded", "is a_package_nobody_has installed in this environment?"),
        ("cdc_oracle_test.log:", "names nothing that Python can import", "package.module:callable"),
        (":open", "names nothing that Python can import", "package.module:callable"),
        (".log:open", "names nothing that Python can import", "package.module:callable"),
        ("a b:open", "names nothing that Python can import", "package.module:callable"),
        ("cdc_oracle_test.log:open.source", "names nothing that Python can import", "package.module:callable"),
    ],
)
def test_a_source_that_cannot_be_had_is_a_configuration_error(
    third_party: Path, type_: str, message: str, hint: str
) -> None:
    """Never another exception; the hint is what to do."""
    with pytest.raises(ConfigError) as caught:
        registry.source(_config(type_))
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_a_package_that_capture_does_without_is_told_with_its_extra(
    third_party: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a command loads a part, and where Python raises it behind that."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(ConfigError) as caught:
        registry.part("cdc_oracle_test.of_spark:read")
    behind = error_of(ModuleNotFoundError(name="pyspark.sql"))
    for error in (caught.value, behind):
        assert error is not None
        assert error.message == "pyspark is not installed, and this command needs it"
        assert error.hint == "pip install 'cdc-toolkit[spark]'"
    assert error_of(ModuleNotFoundError(name="a_module_nobody_has")) is None, "which is a bug"


def test_a_source_without_a_snapshotter_beside_it_says_so(third_party: Path) -> None:
    """By the name that was looked for."""
    with pytest.raises(ConfigError, match=r"cdc_oracle_test\.alone:open_snapshotter cannot be loaded"):
        registry.snapshotter(_config("cdc_oracle_test.alone:open_source"))


def test_a_users_folder_that_hides_one_of_our_packages_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`snapshot/` in the current directory is likely; the error names the folder, not a missing attribute."""
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "__init__.py").write_text("")
    for name in [n for n in sys.modules if n.partition(".")[0] == "snapshot"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    # An editable install finds submodules of a hidden package all the same; a wheel does not.
    installed = [finder for finder in sys.meta_path if "Editable" not in getattr(finder, "__name__", "")]
    monkeypatch.setattr(sys, "meta_path", installed)
    with pytest.raises(
        ConfigError, match=r"snapshot\.postgres\.snapshotter:open_snapshotter cannot be loaded"
    ) as caught:
        registry.snapshotter(_config("postgres"))
    del sys.modules["snapshot"]
    assert f"{tmp_path / 'snapshot'} hides the package snapshot of this tool" in (caught.value.hint or "")
