"""What is asked of a checkpoint on this machine's disk is answered without starting Spark."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest

import spark_apply.replay.offsets
import spark_apply.replay.replay
import spark_apply.verify.leftovers
from cdc.config.apply_config import ApplySource, ApplyTable, StoreConfig
from cdc.config.config import ApplyConfig
from cdc.model.errors import OperatorError
from spark_apply.job.checkpoint.files import AGAIN
from spark_apply.job.checkpoint.reading import on_this_disk
from spark_apply.job.job import Replayed
from spark_apply.job.topics.retention import recovery_command
from spark_apply.replay.offsets import export
from spark_apply.replay.replay import Replay, prepare, run
from spark_apply.verify.leftovers import leftovers

TOPIC = "shop.public.orders"
COPIES = {"public.orders": {"search": "x"}}


class SparkStartedError(Exception):
    """Spark was asked for."""


def _started(*_: object) -> NoReturn:
    raise SparkStartedError


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (spark_apply.replay.offsets, spark_apply.replay.replay):
        monkeypatch.setattr(module, "open_session", _started)
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.delenv(name, raising=False)


def _config(checkpoint: object, **spark: str) -> ApplyConfig:
    return ApplyConfig(
        name="live",
        source=ApplySource(bootstrap_servers="h:1", topic_prefix="shop"),
        stores={"search": StoreConfig(type="tantivy", path="./search")},
        tables={"public.orders": ApplyTable(stores=("search",))},
        checkpoint=str(checkpoint),
        spark=spark,
    )


def _written(place: Path, *ends: int, name: str = "0123456789abcdef") -> Path:
    folder = place / name
    for part in ("offsets", "commits"):
        (folder / part).mkdir(parents=True)
    (folder / "metadata").write_text('{"id": "q"}')
    (folder / "cdc-copies.json").write_text(json.dumps(COPIES))
    (folder / "cdc-topics.json").write_text(json.dumps({TOPIC: {"id": "t", "partitions": 1}}))
    for batch, end in enumerate(ends):
        (folder / "offsets" / f"{batch}").write_text("\n".join(["v1", "{}", json.dumps({TOPIC: {"0": end}})]))
        (folder / "commits" / f"{batch}").write_text("v1\n{}")
    return folder


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_offsets_are_shown(tmp_path: Path, scheme: str) -> None:
    _written(tmp_path, 3, 7)
    _written(tmp_path, 1, name="0123456789abcdef-set-aside-1")
    found = export(_config(f"{scheme}{tmp_path}"))
    assert (found.ends, found.topics, found.copies) == ({TOPIC: {"0": 7}}, {TOPIC: "t"}, COPIES)


def test_the_newest_checkpoint_is_told_by_what_it_holds(tmp_path: Path) -> None:
    """Files that were copied, restored, or written while a clock was set back have other times than they say."""

    def stamped(folder: Path, *, at_ms: int = 0, begun: int | None = None) -> None:
        lines = ["v1", json.dumps({"batchTimestampMs": at_ms}), json.dumps({TOPIC: {"0": at_ms}})]
        (folder / "offsets" / "0").write_text("\n".join(lines))
        if begun is not None:
            (folder / "cdc-begun").write_text(f"{begun}")

    older, newer, damaged = (_written(tmp_path, 3, name=f"{n}123456789abcdef") for n in "bac")
    for folder in (newer, older, damaged):  # the times of files say otherwise
        os.utime(folder / "commits", (1, 1) if folder is newer else None)
    stamped(older, at_ms=10)
    stamped(newer, at_ms=20)
    (damaged / "offsets" / "0").write_text("")
    assert export(_config(tmp_path)).ends == {TOPIC: {"0": 20}}, "of an earlier release"
    stamped(older, at_ms=10, begun=2)
    stamped(newer, at_ms=20, begun=1)
    assert export(_config(tmp_path)).ends == {TOPIC: {"0": 10}}, "a job has begun with it again"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("offsets/1", None, "offsets/1: it is missing"),
        ("offsets/1", b"", "offsets/1: it is empty"),
        ("commits/1", b"v", "commits/1: it is not whole"),
        ("metadata", b"\xff\xfe", "metadata: it cannot be read (MalformedInputException)"),
    ],
)
def test_a_file_that_is_damaged_is_named(tmp_path: Path, name: str, text: bytes | None, said: str) -> None:
    folder = _written(tmp_path, 3, 7)
    (folder / name).unlink() if text is None else (folder / name).write_bytes(text)
    with pytest.raises(OperatorError) as refused:
        export(_config(tmp_path))
    assert refused.value.message == f"the checkpoint is damaged: {folder}/{said}"


def test_a_place_that_the_disk_does_not_give(tmp_path: Path) -> None:
    """A name that no disk takes stands for a folder that this user may not read: tests may run as root."""
    with pytest.raises(OperatorError, match="cannot be read: File name too long") as refused:
        export(_config(tmp_path / ("x" * 300)))
    assert "ls -ld " in (refused.value.hint or "")


def test_a_replay_that_goes_on_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions: dict[str, list[Any]] = {"public.orders": []}
    monkeypatch.setattr(spark_apply.replay.replay, "schema_versions", lambda _: versions)
    monkeypatch.setattr(spark_apply.replay.replay, "_usable", lambda *_: ({}, {}))
    for name, begun_at in (("0123456789abcdef", 2), ("fedcba9876543210", 1)):  # the second went on where that was
        folder = _written(tmp_path / "checkpoint-again", 3, name=name)
        (folder / "sources" / "0").mkdir(parents=True)
        (folder / "sources" / "0" / "0").write_text(f"v1\n{json.dumps({TOPIC: {'0': begun_at}})}")
    made = prepare(_config(tmp_path / "checkpoint"), name="again", since=None)
    assert made.spans == ()
    assert (made.begins.first, made.begins.fresh) == ({TOPIC: {0: 1}}, False)


def test_a_replay_goes_on_without_its_first_offsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark does not need them where a batch was applied, and they may not have been copied along."""
    monkeypatch.setattr(spark_apply.replay.replay, "schema_versions", lambda _: {"public.orders": []})
    monkeypatch.setattr(spark_apply.replay.replay, "_usable", lambda *_: ({}, {}))
    _written(tmp_path / "checkpoint-again", 3)
    made = prepare(_config(tmp_path / "checkpoint"), name="again", since=None)
    assert (made.begins.begin, made.begins.goes_on) == ({TOPIC: {0: 3}}, True)


def test_an_erasure_names_the_copies_of_replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their checkpoints beside the job's, of which one may be another job's, of other tables, or damaged."""
    monkeypatch.setattr(spark_apply.verify.leftovers, "chosen_entries", lambda *_, **__: [])
    for name, job in (("r", "live-AS-r"), ("other", "other"), ("other-r", "other-AS-r"), ("unlike", "live-AS-unlike")):
        folder = _written(tmp_path / f"checkpoint-{name}", 3)
        (folder / "cdc-job").write_text(job)
    (folder / "cdc-copies.json").write_text("{}")
    (_written(tmp_path / "checkpoint-torn", 3) / "cdc-copies.json").write_text("{")
    told = {of["place"]: of for of in leftovers(_config(tmp_path / "checkpoint"), "public.orders", "7")}
    replays = {place: of["what"] for place, of in told.items() if place.startswith("replay ")}
    assert set(replays) == {"replay r of live (search)", "replay torn of live"}
    assert "cdc replay APPLY.yaml --as r --once" in replays["replay r of live (search)"]


@pytest.mark.parametrize("hint", [recovery_command((), ()), AGAIN])
def test_no_hint_of_a_replay_is_a_command_for_the_live_job(hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(*_: object, **__: object) -> NoReturn:
        raise OperatorError("what the job would read next is gone", hint=hint)

    monkeypatch.setattr(spark_apply.replay.replay, "run_apply", ends)
    begins = Replayed({}, goes_on=True, left={})
    with pytest.raises(OperatorError, match="what the job would read next is gone") as told:
        run(Replay(_config("./checkpoint-r"), (), begins), once=True)
    assert told.value.hint is not None
    assert "cdc " not in told.value.hint


def test_where_only_spark_can_look_it_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for config in (
        _config("s3a://bucket/checkpoint"),
        _config("file://elsewhere/checkpoint"),
        _config(tmp_path, **{"spark.hadoop.fs.defaultFS": "hdfs://h"}),
    ):
        with pytest.raises(SparkStartedError):
            export(config)
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    with pytest.raises(SparkStartedError):
        export(_config(tmp_path))
    assert on_this_disk(_config(f"file:{tmp_path}")) == str(tmp_path), "a scheme says it all"
