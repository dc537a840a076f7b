"""A position is moved only where that is asked for, to a place that the log has, and as one commit."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

import cdc.capture.pipeline
from cdc.capture.control.signals import Command
from cdc.cli.repairing import offsets
from cdc.config.config import ConnectorConfig
from cdc.model.change import Offset
from cdc.model.errors import ConfigError, OperatorError
from cdc.model.interfaces import Follower
from cdc.model.state import checksum_of
from cdc.offsets.exported import Exported, of_state
from cdc.offsets.moved_position import Move, move
from cdc.testing import MemorySink, MemorySource, delete, insert, update
from spark_apply.replay.offsets import meaning
from spark_apply.spark.at_work import alone, at_work
from tests.unit.test_pipeline import A, B, Bench, _row


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(cdc.capture.pipeline, "RETRY_FIRST_S", 0.0)
    bench = Bench()
    bench.log.commit(insert(A, _row("1")))
    bench.run(A, B)
    return bench


def _exported(bench: Bench) -> Exported:
    return of_state(bench.state(), prefix="p", at_ms=1)


def _moved(bench: Bench, exported: Exported, *, force: bool = False, source: Any = MemorySource) -> Move:
    bench.log.acknowledged = 0  # this log forgets nothing
    sink = MemorySink(bench.kafka, "c", "p")
    with closing(sink), closing(source(bench.log, [A, B])) as opened:
        return move(opened, sink, exported, config={}, force=force)


def test_a_position_before_is_refused_and_then_repeats(bench: Bench) -> None:
    """With what it means in words; forced, the same events come again and the topic's fold is the same."""
    before = _exported(bench)
    bench.log.commit(update(A, _row("1", "two")))
    bench.log.commit(insert(B, _row("7", "x")))
    bench.run(A, B)
    stood, fold = bench.state(), bench.fold(A)
    with pytest.raises(OperatorError) as refused:
        _moved(bench, before)
    assert "of 2 tables would be published again" in refused.value.message
    assert (refused.value.hint or "").startswith("cdc offsets import CONNECTOR.yaml OFFSETS.json --force")
    assert bench.state() == stood, "nothing is done"
    done = _moved(bench, before, force=True)
    assert (done.kind, done.sequence) == ("repeat", bench.state().sequence)
    assert bench.state() == replace(
        stood, offset=before.offset, commit=before.commit, source_ms=before.source_ms, sequence=stood.sequence + 1
    )
    bench.run(A, B)
    assert bench.events(A) == ["r", "u", "u"]
    positions = [orjson.loads(r.value or b"")["source"]["position"] for r in bench.kafka.committed(f"p.{A.qualified}")]
    assert positions[1] == positions[2], "readers that go by position leave the second one out"
    assert bench.fold(A) == fold
    assert bench.fold(B) == {"7": "x"}


def test_a_position_behind_skips_and_a_snapshot_closes_the_hole(bench: Bench) -> None:
    """As after the position topic came back from an older backup."""
    before = _exported(bench)
    bench.log.commit(insert(A, _row("2", "two")))
    bench.run(A, B)
    after = _exported(bench)
    _moved(bench, before, force=True)
    bench.log.commit(insert(A, _row("3", "three")))
    with pytest.raises(OperatorError) as refused:
        _moved(bench, after)
    assert "would never be published" in refused.value.message
    assert _moved(bench, after, force=True).kind == "skip"
    bench.run(A, B)
    assert bench.fold(A) == {"1": "n", "2": "two", "3": "three"}, "the first run had published it"
    bench.ask(Command(tables=(A.qualified,)))
    bench.run(A, B)
    assert bench.fold(A) == {"1": "n", "2": "two", "3": "three"}


def test_a_position_before_a_reading_says_that_tables_are_to_be_read_again(bench: Bench) -> None:
    """What the log does not tell, and a reading has found, is undone by the events of before."""
    bench.log.commit(insert(A, _row("2", "two")))
    before = _exported(bench)
    bench.run(A, B)
    followed = bench.log.carried
    bench.log.carried = frozenset()
    bench.log.commit(delete(A, (b"2",)))
    bench.log.carried = followed
    bench.ask(Command(tables=(A.qualified,)))
    bench.run(A, B)
    assert bench.fold(A) == {"1": "n"}
    with pytest.raises(OperatorError, match=r"rows of tables were read since: .* \(cdc snapshot start\)"):
        _moved(bench, before)
    assert _moved(bench, before, force=True).reads_again
    bench.run(A, B)
    assert bench.fold(A) == {"1": "n", "2": "two"}, "its insert came again"
    bench.ask(Command(tables=(A.qualified,)))
    bench.run(A, B)
    assert bench.fold(A) == {"1": "n"}


def test_the_position_it_stands_at_is_nothing_new(bench: Bench) -> None:
    stood = bench.state()
    assert _moved(bench, _exported(bench)).kind == "same"
    assert bench.state() == stood


class _Seen(MemorySource):
    """Another copy is at work."""

    def follower(self) -> Follower | None:
        return Follower("process 7", certain=True)


class _Elsewhere(MemorySource):
    def connect(self) -> dict[str, str]:
        return {"database": "another"}


@pytest.mark.parametrize(
    ("changes", "source", "said"),
    [
        ({}, _Seen, "is at work (process 7)"),
        ({}, _Elsewhere, "another source"),
        ({"name": "d"}, MemorySource, "of the connector d, not of connector c"),
        ({"of": "apply"}, MemorySource, "of the apply job c"),
        ({"identity": {"database": "another"}}, MemorySource, "the offsets are of another server"),
        ({"epoch": 2}, MemorySource, "of epoch 2, connector c is in 1"),
        ({"phase": "snapshot"}, MemorySource, "a first snapshot has no place in the log"),
        ({"commit": 1_000_000, "offset": {"at": 1_000_000}}, MemorySource, "an older copy was restored"),
    ],
)
def test_what_is_never_taken(bench: Bench, changes: dict[str, Any], source: Any, said: str) -> None:
    """With --force neither; the producer is not fenced, and nothing is written."""
    stood, records = bench.state(), len(bench.kafka.topics["p.position-c"])
    with pytest.raises(OperatorError) as refused:
        _moved(bench, replace(_exported(bench), **changes), force=True, source=source)
    assert said in refused.value.message
    assert (bench.state(), len(bench.kafka.topics["p.position-c"])) == (stood, records)


def test_a_log_that_is_gone_a_snapshot_and_no_position(bench: Bench) -> None:
    before = _exported(bench)
    bench.log.commit(insert(A, _row("2")))
    bench.run(A, B)
    sink = MemorySink(bench.kafka, "c", "p")
    with closing(MemorySource(bench.log, [A, B])) as source, pytest.raises(OperatorError) as gone:
        move(source, sink, before, config={}, force=True)
    assert "cannot be followed from at" in gone.value.message
    empty = Bench()
    with closing(MemorySource(empty.log, [A])) as source, pytest.raises(OperatorError) as never:
        move(source, MemorySink(empty.kafka, "c", "p"), before, config={}, force=True)
    assert "has never run" in never.value.message


def test_a_table_that_is_read_again_keeps_the_position_where_it_is(bench: Bench) -> None:
    sink = MemorySink(bench.kafka, "c", "p")
    sink.fence()
    sink.commit(bench.state().next(reading={"public.a": {"since": "x"}}))
    with pytest.raises(OperatorError, match=r"read again, which goes by the position: public\.a"):
        _moved(bench, _exported(bench), force=True)


def test_a_file_is_taken_as_it_was_written_or_not_at_all(bench: Bench) -> None:
    exported = _exported(bench)
    written = exported.to_json()
    more = {**{name: of for name, of in written.items() if name != "checksum"}, "colour": "red"}
    assert Exported.from_json(orjson.dumps(written, option=orjson.OPT_INDENT_2), where="f") == exported
    for text, said in (
        (orjson.dumps({**written, "commit": 5}), "not as they were written"),
        (orjson.dumps({**written, "cdc_offsets": 2}), "of version 2"),
        (orjson.dumps({**more, "checksum": checksum_of(more)}), "offsets with colour were exported by another release"),
        (b"{}", "no offsets that were exported"),
        (b"[1]", "no offsets that were exported"),
        (b"\xff", "no offsets that were exported"),
    ):
        with pytest.raises(ConfigError, match=said):
            Exported.from_json(text, where="f")


def test_what_an_apply_job_would_read_again_or_never() -> None:
    here = {"p.public.a": {0: 10, 1: 4}, "p.public.b": {0: 7}}
    assert meaning("j", here, here)[0] == "same"
    kind, said = meaning("j", here, {"p.public.a": {0: 3, 1: 4}})
    assert kind == "repeat"
    assert "14 offsets of 2 topics (p.public.a, p.public.b) would be read again" in said
    kind, said = meaning("j", here, {"p.public.a": {0: 3, 1: 9}, "p.public.b": {0: 7}})
    assert kind == "skip"
    assert "7 offsets of 1 topics (p.public.a) would be read again" in said
    assert "5 offsets of 1 topics (p.public.a) would never be read" in said


def test_a_job_at_work_is_seen(tmp_path: Path) -> None:
    """Two jobs do not see each other; an import sees either, and none starts beside it."""
    place = str(tmp_path / "checkpoint")
    with alone(place, "j") as sure:
        assert not sure, "there is no folder, hence no job"
    with (
        at_work(place),
        at_work(place),
        pytest.raises(OperatorError, match="apply job j is at work"),
        alone(place, "j"),
    ):
        pass
    with alone(place, "j") as sure:
        assert sure
        with pytest.raises(OperatorError, match="offsets are being imported"), at_work(place):
            pass
    with at_work("s3a://bucket/checkpoint"), alone("s3a://bucket/checkpoint", "j") as sure:
        assert not sure


def test_a_file_system_without_locks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_number: int, _how: int) -> None:
        raise OSError(os.strerror(9))

    (tmp_path / "c").mkdir()
    monkeypatch.setattr(fcntl, "flock", refused)
    with at_work(str(tmp_path / "c")), alone(str(tmp_path / "c"), "j") as sure:
        assert not sure


class Renamed(MemorySource):
    """The same database under another name."""

    def connect(self) -> Mapping[str, str]:
        self.database = "another"
        return super().connect()

    def renamed(self, then: Mapping[str, str], at: Offset) -> Mapping[str, str]:
        return {**then, "database": self.database}


def test_a_position_is_moved_in_a_database_that_was_renamed(bench: Bench) -> None:
    """One that was exported before that, and where no connector has run since."""
    before = _exported(bench)
    bench.log.commit(insert(B, _row("7", "x")))
    bench.run(A, B)
    assert _moved(bench, before, force=True, source=Renamed).kind == "repeat"
    assert bench.state().identity == {"database": "another"}


@pytest.mark.parametrize(
    ("commits", "refused"),
    [
        ([None], False),  # it does not run
        ([(1,), (1,), None], False),  # it ended a moment ago
        ([(None,), (None,), None], False),
        ([(1,), (1,), (2,)], True),
    ],
)
def test_what_has_committed_a_moment_ago_is_watched(
    commits: list[tuple[int | None] | None],
    *,
    refused: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A source that tells nobody who follows it: a connector that commits again is at work, and would be fenced."""
    looks, config = iter(commits), cast("ConnectorConfig", SimpleNamespace(name="c"))

    def status(_config: object) -> dict[str, object]:
        at = next(looks)
        return {"running": at is not None, "committed_at": at[0] if at is not None else None}

    monkeypatch.setattr(offsets, "connector_status", status)
    monkeypatch.setattr(offsets, "_WATCHED_S", 0.0)
    with pytest.raises(OperatorError, match="connector c is at work") if refused else nullcontext():
        offsets._refuse_at_work(config)
    assert capsys.readouterr().err.count("it is watched") == (len(commits) > 1), "said once"
