"""What a view job does about topics that brokers have cut while it waited for them."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.model.errors import FencedError, OperatorError, RetryableError
from cdc.model.ledger import TopicFacts
from cdc.model.state import Phase, State
from spark_apply.views.publishing.output import ViewOutput


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
