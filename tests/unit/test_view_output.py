"""What a view job does about topics that brokers have cut while it waited for them."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.config.views import ViewConfig
from cdc.model.change import Kind
from cdc.model.errors import FencedError, OperatorError, RetryableError
from cdc.model.ledger import TopicFacts
from cdc.model.state import Phase, State
from cdc.testing import MemoryKafka, MemorySink
from spark_apply.views import job as view_job
from spark_apply.views.database.state import DatabaseState
from spark_apply.views.planning.forms import plan_config
from spark_apply.views.planning.view import View
from spark_apply.views.publishing import output as output_of_views
from spark_apply.views.publishing.output import ViewOutput, outbox_note
from spark_apply.views.sql.view_plan import Relation
from tests.views.steps import Steps


class _Sink:
    """Its brokers fail once, and come back with less."""

    def __init__(self, *stands: State | None) -> None:
        self.fenced = 0
        self.stands = stands or (None,)
        """What the position topic has, each time that it is read."""

    def moved(self) -> bool:
        return False

    def fence(self) -> State | None:
        self.fenced += 1
        return self.stands[min(self.fenced, len(self.stands)) - 1]

    def found(self) -> dict[str, TopicFacts]:
        return {"t": TopicFacts(partitions=1, cut=self.fenced > 1 and self.stands == (None,))}


def test_what_was_cut_is_not_written_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The events of the outbox would make the position one that says that all is there."""
    sink: Any = _Sink()
    state: Any = SimpleNamespace(get=lambda _: "[]")
    output = ViewOutput(sink, "job", "p", state, (), lambda _: None, "shop")
    output._fence()
    tries: list[None] = []

    def flushed(_: ViewOutput) -> None:
        tries.append(None)
        raise RetryableError("no broker answers")

    monkeypatch.setattr(ViewOutput, "_flush", flushed)
    with pytest.raises(OperatorError, match=r"view job job was deleted, .* or cut while the job runs") as told:
        output.flush()
    assert "start it again" in (told.value.hint or "")
    assert (len(tries), sink.fenced) == (1, 2)


def _stand(step: int, token: str) -> State:
    offset: dict[str, str | int] = {
        "step": step,
        "seq": 7,
        "position": "00000001.0000000000000009.00000000",
        "token": token,
    }
    return State(connector="job", identity={}, phase=Phase.STREAM, epoch=1, offset=offset)


@pytest.mark.parametrize(
    ("then", "goes_on"),
    [
        (_stand(4, "before"), True),
        (_stand(5, "mine"), True),
        (_stand(4, "another's"), False),
        (_stand(5, "another's"), False),
        (_stand(6, "another's"), False),
        (None, False),
    ],
)
def test_a_step_of_another_copy_is_not_taken_for_ones_own(
    monkeypatch: pytest.MonkeyPatch, then: State | None, goes_on: bool
) -> None:
    """While brokers were away another copy took over, and published a step of the same number, or of the next one."""
    sink: Any = _Sink(_stand(4, "before"), then)
    values = {"step": "5", "token": "mine", "outbox": '{"step": 5, "token": "mine", "after": "before"}'}
    done: Any = lambda *_, **__: None  # noqa: E731
    state: Any = SimpleNamespace(get=values.get, transaction=nullcontext, execute=done, put=done)
    output = ViewOutput(sink, "job", "p", state, (), lambda _: None, "shop")
    output._fence()
    tries: list[None] = []

    def flushed(_: ViewOutput) -> None:
        tries.append(None)
        if len(tries) == 1:
            raise RetryableError("no broker answers")

    monkeypatch.setattr(ViewOutput, "_flush", flushed)
    if goes_on:
        output.flush()
    else:
        with pytest.raises(FencedError, match="another copy of view job job has published"):
            output.flush()
    assert len(tries) == 1 + goes_on


@pytest.mark.parametrize(
    ("stand", "goes_on"),
    [
        (_stand(5, "mine"), True),
        (_stand(4, "before"), True),
        (_stand(3, "long before"), True),
        (None, True),
        (_stand(5, "another's"), False),
        (_stand(6, "another's"), False),
    ],
)
def test_who_comes_back_does_not_fence_who_went_on(stand: State | None, goes_on: bool) -> None:
    """A stand of before the state's is none of another copy: the topics were cut, and the state is made again."""
    sink: Any = _Sink(stand)
    values = {"step": "5", "token": "mine", "outbox": '{"step": 5, "token": "mine", "after": "before"}'}
    state: Any = SimpleNamespace(get=values.get)
    output = ViewOutput(sink, "job", "p", state, (), lambda _: None, "shop")
    if goes_on:
        output.require_own(stand)
    else:
        with pytest.raises(FencedError, match="another copy of view job job has published"):
            output.require_own(stand)
    assert sink.fenced == 0


@pytest.mark.parametrize("made_again", ["", "not as this job has left them (public.x)"])
def test_tables_that_are_made_again_while_the_job_runs_are_those_of_no_other_copy(
    monkeypatch: pytest.MonkeyPatch, made_again: str
) -> None:
    """They are empty: what this process has published before is not taken for another one's."""
    sink: Any = SimpleNamespace(close=lambda: None, check=_begun)
    config: Any = SimpleNamespace(state="s", tables=None, name="job", source=SimpleNamespace(topic_prefix="p"))
    state = object.__new__(DatabaseState)
    state.set_aside, state.made_again, state._server = None, made_again, sink
    monkeypatch.setattr(DatabaseState, "get", lambda *_: None)
    monkeypatch.setattr(view_job, "_state_of", lambda *_: state)
    monkeypatch.setattr("spark_apply.views.job.registry.sink", lambda *_: sink)
    for name in ("sink_config", "origin_of", "texts_of", "Lake"):
        monkeypatch.setattr(view_job, name, lambda *_: None)
    planned: Any = SimpleNamespace(engine="postgres", connector="", views=())
    before: Any = object()
    spark: Any = None
    with pytest.raises(_BegunError if made_again else FencedError):
        view_job.open_state(config, planned, spark, lambda _: None, (), before=before, stand=_stand(5, "mine"))


class _BegunError(Exception):
    pass


def _begun(_: object) -> None:
    raise _BegunError


class _Topic:
    """A view's topic, with what others have written into it."""

    def __init__(self, *records: tuple[bytes | None, bytes | None]) -> None:
        self._records = records

    def records(self, _: Any, *, committed: bool) -> Any:
        assert committed
        return iter(self._records)

    def topic(self, _: Any) -> str:
        return "p.view.rows"


def _event(row: str, op: str = "c") -> bytes:
    source = '{"version":"1","position":"00000001.0000000000000009.00000000","schema_version":1}'
    before, after = ("null", row) if op == "c" else (row, "null")
    return f'{{"before":{before},"after":{after},"source":{source},"op":"{op}"}}'.encode()


def _rows(folder: Path) -> tuple[Steps, View]:
    table = Relation("public.r", {"id": Kind("int64"), "v": Kind("string")}, ("id",))
    config = ViewConfig(sql="SELECT id, v FROM public.r", key=("id",))
    plan, sql, match = plan_config("rows", config, {table.name: table}, {})
    view = View(plan, list(table.columns.items()), sql, {}, match)
    steps = Steps(folder, [table], [view])
    return steps, view


def test_records_of_others_in_a_views_topic(tmp_path: Path) -> None:
    """Under a key of the view they stand in place of its row: that is published again, or the key is deleted."""
    steps, view = _rows(tmp_path)
    steps.write("public.r", {(number,): (f"v{number}",) for number in (1, 2, 3)})
    steps.step()
    one, two, gone = b'{"id":1}', b'{"id":2}', b'{"id":9}'
    sink: Any = _Topic(
        (one, _event('{"id":1,"v":"v1"}')),
        *((two, value) for value in (_event('{"id":2,"v":"v2"}'), b"hello", b'{"before":null,"after":7}', b"\xff")),
        (b'{"id":3}', _event('{"id":3,"v":"v3"}')),
        *((gone, value) for value in (b'{"before":{"id":9}', b"[]")),
        (b'{"id":8}', _event('{"id":8,"v":"x"}')),
        *((b'{"id":8}', value) for value in (_event('{"id":8,"v":"x"}', "d"), None)),
        *((key, b'{"id":1,"v":"v1"}') for key in (None, b"", b"hello", b"\xff", b'{"k":1}', b"\0\0\0\0\1x")),
    )
    told: list[str] = []
    ViewOutput(sink, "job", "p", steps.state, [view], told.append, "shop").load(view)
    assert [(op, key) for _, op, key, _ in steps.step(stale=True)] == [("d", (9,)), ("u", (2,))]
    assert told == ["warning: topic p.view.rows: 11 records are no events of this job"]
    steps.close()


def test_an_event_that_would_be_too_large_is_without_the_old_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that its table's topic takes is published, and stays right: a change of it has it twice."""
    monkeypatch.setattr(output_of_views, "MOST_CHARACTERS", 3_000)
    kafka = MemoryKafka(largest_bytes=4_000)
    steps, view = _rows(tmp_path)
    output = ViewOutput(MemorySink(kafka, "job", "p"), "job", "p", steps.state, [view], lambda _: None, "shop")
    output.begin()
    old, new = (f'{{"id":1,"v":"{letter * 2_500}"}}' for letter in "ab")
    for step, (op, before, after) in enumerate([("c", None, old), ("u", old, new), ("d", new, None)], 1):
        steps.state.execute(
            "INSERT INTO outbox VALUES (?, ?, ?, ?, ?, ?)", [step, "rows", op, '{"id":1}', before, after]
        )
        note = outbox_note(
            step=step, seq=step, position="00000001.0000000000000009.00000000", clock_ms=1, streams={},
            tokens=(f"t{step}", f"t{step - 1}"),
        )  # fmt: skip
        steps.state.put(step=step, outbox=json.dumps(note))
        output.flush()
    events = [json.loads(of.value) for of in kafka.committed("p.view.rows") if of.value is not None]
    rows = [(event["op"], event["before"] is not None, event["after"]) for event in events]
    assert rows == [("c", False, json.loads(old)), ("u", False, json.loads(new)), ("d", True, None)]
    steps.close()


def test_a_job_of_another_connector_fences_nobody(tmp_path: Path) -> None:
    """A file that was copied for the tables of another connector, and kept its name, is refused: the first goes on."""
    kafka = MemoryKafka()
    steps, view = _rows(tmp_path)

    def output(origin: str) -> ViewOutput:
        return ViewOutput(MemorySink(kafka, "job", "p"), "job", "p", steps.state, [view], lambda _: None, origin)

    first = output("shop")
    first.begin()
    for step in (1, 2):
        row = json.dumps({"id": step, "v": "a"})
        steps.state.execute(
            "INSERT INTO outbox VALUES (?, ?, ?, ?, ?, ?)", [step, "rows", "c", f'{{"id":{step}}}', None, row]
        )
        note = outbox_note(
            step=step, seq=step, position="00000001.0000000000000009.00000000", clock_ms=1, streams={},
            tokens=(f"t{step}", f"t{step - 1}"),
        )  # fmt: skip
        steps.state.put(step=step, outbox=json.dumps(note))
        first.flush()
        epochs = dict(kafka.epochs)
        with pytest.raises(OperatorError, match=r"has published positions of connector shop, .* are of bills now"):
            output("bills").begin()
        assert kafka.epochs == epochs
    assert len(kafka.committed("p.view.rows")) == 2
    steps.close()
