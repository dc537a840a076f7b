"""What a view job does about topics that brokers have cut while it waited for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cdc.model.errors import OperatorError, RetryableError
from cdc.model.ledger import TopicFacts
from spark_apply.views.publishing.output import ViewOutput


class _Sink:
    """Its brokers fail once, and come back with less."""

    def __init__(self) -> None:
        self.fenced = 0

    def moved(self) -> bool:
        return False

    def fence(self) -> None:
        self.fenced += 1

    def found(self) -> dict[str, TopicFacts]:
        return {"t": TopicFacts(partitions=1, cut=self.fenced > 1)}


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
