"""What every sink promises that is a file in place of Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cdc.config import registry
from cdc.config.config import FILE_SINKS, FileSink
from cdc.model.errors import BugError, CdcError, OperatorError
from cdc.model.interfaces import Sink
from cdc.model.state import Phase, State
from tests.text_tables import text_table

A = text_table("a", ["id"])
STATE = State(
    connector="c", identity={"database": "d"}, phase=Phase.STREAM, epoch=1, offset={"at": 7}, commit=7, tables=("s.a",)
)
RECORD = (
    b'{"connector":"c","topic":"s.a","schema":"s","table":"a","version":1,"position":"","key":["id"],'
    b'"columns":[{"name":"id","type":"text","kind":"string"}]}'
)
EVENT = (
    b'{"before":null,"after":{"id":"k"},"source":{"ts_ms":1,"schema_version":1,"position":"0"},"transaction":null,'
    b'"op":"c","ts_ms":1}'
)
Make = Callable[..., Sink]


@pytest.fixture(params=FILE_SINKS)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    def make(connector: str = "c") -> Sink:
        return registry.file_sink(FileSink(type=request.param, path=str(tmp_path / "file")), connector)

    return make


@pytest.fixture
def sink(made: Make) -> Iterator[Sink]:
    with closing(made()) as found:
        assert not found.check([A])
        found.create([A])
        assert found.fence() is None
        yield found


def _write(sink: Sink) -> None:
    sink.schema(b"s", RECORD)
    sink.write(sink.topic(A), b'{"id":"k"}', EVENT)


def test_fencing_gives_the_last_committed_state(sink: Sink, made: Make) -> None:
    _write(sink)
    assert sink.pending()[0] > 0
    sink.commit(STATE)
    sink.commit(STATE.next(commit=9))
    assert sink.pending() == (0, 0)
    sink.close()
    with closing(made()) as again:
        assert again.check([A])
        assert again.fence() == again.peek() == STATE.next(commit=9)
        assert list(again.schemas()) == [RECORD]


def test_what_was_not_committed_is_never_seen(sink: Sink, made: Make) -> None:
    sink.commit(STATE)
    _write(sink)
    sink.ask(b"lost", b"{}")
    sink.close()
    with closing(made()) as again:
        assert again.fence() == STATE
        assert (list(again.schemas()), again.commands()) == ([], [])


def test_a_command_of_the_connectors_own_waits_if_it_was_committed(sink: Sink, made: Make) -> None:
    sink.ask(b"kept", b"{}")
    sink.commit(STATE)
    sink.close()
    with closing(made()) as again:
        again.fence()
        assert again.commands() == [(b"kept", b"{}")]
        again.answered(b"kept")
        again.commit(STATE.next())
        assert again.commands() == []


def test_a_second_copy_is_refused_while_the_first_has_the_file(sink: Sink, made: Make) -> None:
    sink.commit(STATE)
    with closing(made()) as other, pytest.raises(CdcError, match="in use"):
        other.fence()
    _write(sink)
    sink.commit(STATE.next())


def test_another_connector_s_file_is_refused(sink: Sink, made: Make) -> None:
    sink.commit(STATE)
    sink.close()
    with closing(made("other")) as other, pytest.raises(OperatorError, match="is written by connector c"):
        other.fence()


def test_nothing_is_written_before_fencing_or_after_closing(sink: Sink, made: Make) -> None:
    sink.close()
    sink.close()
    for each in (sink, made()):
        _write(each)
        with pytest.raises(BugError, match="not fenced"):
            each.commit(STATE)
    assert sink.fence() is None
    _write(sink)
    sink.commit(STATE)


def test_nothing_is_made_by_asking(made: Make, tmp_path: Path) -> None:
    with closing(made()) as fresh:
        assert not fresh.check([A])
        assert fresh.peek() is None
        fresh.create([A])
    assert list(tmp_path.iterdir()) == []
