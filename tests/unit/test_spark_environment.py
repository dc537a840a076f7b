"""What surrounds Spark is looked at before it starts; each thing it would fail of is a sentence with a remedy."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest

from cdc.config.apply_config import ApplySource, ApplyTable, StoreConfig
from cdc.config.config import ApplyConfig
from cdc.dev.java import java
from cdc.model.errors import ConfigError, OperatorError
from spark_apply.model.store import require_stores
from spark_apply.spark.jvm import environment
from spark_apply.spark.jvm.environment import require_environment, require_paths
from spark_apply.spark.paths import located
from spark_apply.spark.remedies import reaching
from spark_apply.stores.opensearch.store import open_store


def java_saying(folder: Path, version: str) -> Path:
    program = folder / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(("version", "runs"), [("17.0.15", True), ("21.0.2", True), ("24", False), ("25.0.3", False)])
def test_a_java_on_which_spark_does_not_run(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, runs: bool
) -> None:
    program = java_saying(tmp_path, version)
    monkeypatch.setattr(environment, "java", lambda: program)
    if runs:
        require_environment({})
        return
    with pytest.raises(
        OperatorError, match=rf"does not run on Java {version[:2]} .* it does on Java 17 and 21"
    ) as told:
        require_environment({})
    assert "JAVA_HOME" in (told.value.hint or "")


def test_one_jvm_is_started_to_ask_for_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\necho 'openjdk version \"17.0.15\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(environment, "java", java.__wrapped__)
    require_environment({})
    require_environment({})
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_another_spark_than_pysparks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = java_saying(tmp_path, "17.0.1")
    monkeypatch.setattr(environment, "java", lambda: program)
    with pytest.raises(OperatorError, match="which has no Spark") as missing:
        require_environment({"SPARK_HOME": str(tmp_path / "nowhere")})
    assert "unset SPARK_HOME" in (missing.value.hint or "")
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    (jars / "spark-core_2.12-3.5.1.jar").touch()
    with pytest.raises(OperatorError, match=r"which has spark-core_2\.12-3\.5\.1; pyspark here is"):
        require_environment({"SPARK_HOME": str(tmp_path / "spark")})
    (jars / f"spark-core_2.13-{pyspark.__version__}.jar").touch()
    require_environment({"SPARK_HOME": str(tmp_path / "spark")})


@pytest.mark.parametrize(
    ("name", "value"),
    [("SPARK_REMOTE", "sc://h"), ("SPARK_CONNECT_MODE_ENABLED", "1"), ("SPARK_API_MODE", "connect"),
     ("SPARK_CONF_DIR", "/nowhere")],
)  # fmt: skip
def test_a_mode_of_spark_that_cannot_be_used(name: str, value: str) -> None:
    with pytest.raises(OperatorError, match=name) as told:
        require_environment({name: value})
    assert (told.value.hint or "").startswith(f"unset {name}")


def test_places_that_cannot_be_folders(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    for place, what in (("file", "a file"), ("file/deeper", "a file"), ("dangling", "a link to nothing")):
        with pytest.raises(ConfigError, match=rf"stores\.lake\.path: .* is {what}, and a folder is needed"):
            require_paths([("stores.lake.path", str(tmp_path / place))])
    require_paths([("checkpoint", str(tmp_path / "new" / "deep")), ("stores.lake.path", "s3a://bucket/lake")])


@pytest.mark.parametrize(
    ("locale", "fits"),
    [({"LC_ALL": "C"}, False), ({}, False), ({"LC_ALL": "C.UTF-8"}, True), ({"LANG": "de_DE.utf8@euro"}, True),
     ({"LC_ALL": "POSIX", "LANG": "de_DE.UTF-8"}, False), ({"LANG": "de_DE.ISO-8859-1"}, False)],
)  # fmt: skip
def test_a_path_outside_ascii_needs_a_locale(locale: dict[str, str], tmp_path: Path, *, fits: bool) -> None:
    require_paths([("checkpoint", str(tmp_path / "plain"))], locale)
    places = [("checkpoint", str(tmp_path / "Grüße"))]
    if fits:
        require_paths(places, locale)
        return
    with pytest.raises(ConfigError, match="Java cannot name") as told:
        require_paths(places, locale)
    assert told.value.hint == "export LC_ALL=C.UTF-8"


def test_a_tilde_is_the_users_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert located("~/lake") == str(tmp_path / "lake")
    with pytest.raises(ConfigError, match="there is no such user"):
        located("~nobody-of-this-name/lake")


@pytest.mark.parametrize(
    "url", ["localhost:9200", "//host:9200", "host", "https://", "ftp://host", "user:secret@host:9200"]
)
def test_an_opensearch_url_needs_a_scheme(url: str) -> None:
    with pytest.raises(ConfigError, match=r"stores\.search\.url does not begin with http:// or https://") as told:
        open_store(StoreConfig(type="opensearch", url=url), name="search", prefix="shop", spark=None)
    assert "secret" not in str(told.value)


def test_other_failures_pass_as_they_are() -> None:
    with pytest.raises(KeyError), reaching("checkpoint: x"):
        raise KeyError
    with pytest.raises(ConfigError, match="ours"), reaching("checkpoint: x"):
        raise ConfigError("ours")


@pytest.mark.parametrize(
    ("store", "why"),
    [(StoreConfig(type="icberg", path="./w"), "“icberg” is not a store"),
     (StoreConfig(type="none.such:store"), "none.such"),
     (StoreConfig(type="delta"), "path is missing"),
     (StoreConfig(type="postgres", url="http://db"), "is not a PostgreSQL URL"),
     (StoreConfig(type="iceberg", path="./w", options={"compact": True}), "compact: unknown key")],
)  # fmt: skip
def test_a_store_that_can_never_be_opened_is_refused_before_spark_starts(store: StoreConfig, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        require_stores(with_store(store))


def test_a_third_partys_store_is_not_built_before_spark_starts() -> None:
    """A job of views hands its live store over in the options: built and closed here, the job would have none."""
    require_stores(with_store(StoreConfig(type=f"{__name__}:never_built")))


def never_built(*_: object, **__: object) -> object:
    raise AssertionError


def with_store(store: StoreConfig) -> ApplyConfig:
    return ApplyConfig(
        name="shop",
        source=ApplySource(bootstrap_servers="127.0.0.1:9", topic_prefix="shop"),
        stores={"fine": StoreConfig(type="tantivy", path="./search"), "copy": store},
        tables={"public.*": ApplyTable(stores=("fine",))},
        checkpoint="./checkpoints",
    )
