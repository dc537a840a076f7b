"""A disk that is full, a file that others move or write to: files of JSON lines, and of long transactions."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

import cdc.files.large_events
import sinks.duckdb.entry
import sinks.jsonl
from cdc.model.change import Position
from cdc.model.errors import ConfigError, OperatorError
from cdc.model.interfaces import Sink
from cdc.model.state import Phase, State
from connectors.mysql.binlog.spill import close_file
from sinks.jsonl import JsonlSink

FULL = Path("/dev/full")
STATE = State(connector="c", identity={"database": "d"}, phase=Phase.STREAM, epoch=1, offset={"lsn": "0/7"}, commit=7)

pytestmark = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full, which Linux has")


@pytest.mark.parametrize("open_sink", [sinks.jsonl.open_sink, sinks.duckdb.entry.open_sink])
def test_what_is_no_file_is_refused_before_anything_is_made(
    open_sink: Callable[[str, str], Sink], tmp_path: Path
) -> None:
    """To open a named pipe waits for its reader, and a device failed behind the making of the slot, which stayed."""
    pipe, link, fine = tmp_path / "pipe", tmp_path / "link", tmp_path / "to be made"
    os.mkfifo(pipe)
    link.symlink_to(FULL)
    for path in (pipe, link, tmp_path, Path(os.devnull)):
        with pytest.raises(ConfigError, match="is there, and is no file"):
            open_sink(str(path), "c")
    link.unlink()
    link.symlink_to(link)
    for name in (str(link), f"{fine}\0"):
        with pytest.raises(ConfigError, match="leads to no file"):
            open_sink(name, "c")
    link.unlink()
    link.symlink_to(fine)
    open_sink(str(link), "c").close()
    assert not fine.exists()


def test_lines_that_a_full_disk_does_not_take(tmp_path: Path) -> None:
    """They are not committed, and what is left of them in memory does not hide the error when the sink is closed."""
    path = tmp_path / "changes.jsonl"
    sink = JsonlSink(path, "c")
    assert sink.fence() is None
    assert sink._file is not None
    sink._file.close()
    path.unlink()
    path.symlink_to(FULL)
    sink._file = FULL.open("ab")
    sink.write("p.s.t", b'{"id":1}', b'{"op":"c","source":{"position":"1"}}')
    with pytest.raises(OperatorError, match="cannot be written: No space left on device"):
        sink.commit(STATE)
    sink.close()
    path.unlink()
    assert sink.fence() is None, "nothing was committed"
    sink.commit(STATE)
    sink.close()


def test_where_rows_come_again_is_told_as_other_events_tell_their_table(tmp_path: Path) -> None:
    """Schema and table apart, whichever has the dot: of a name alone nobody knows."""
    sink = JsonlSink(tmp_path / "changes.jsonl", "c")
    sink.fence()
    sink.schema(b"1", b'{"db":"d","schema":"a.b","table":"c.d","version":1}')
    at = replace(STATE, tables=("a.b.c.d",))
    sink.commit(at)
    reading = {"a.b.c.d": {"since": Position(1, 3, 0).text}}
    sink.commit(replace(at.next(), reading=reading))
    sink.close()
    (event,) = map(json.loads, (tmp_path / "changes.jsonl").read_text().splitlines())
    assert (event["op"], event["key"]) == ("t", None)
    assert [event["source"][part] for part in ("db", "schema", "table")] == ["d", "a.b", "c.d"]


def test_a_table_that_is_back_has_its_earlier_rows_taken_away_once(tmp_path: Path) -> None:
    """It was captured, then no more: no log has the rows that went meanwhile. It may be read at once, or later."""
    sink = JsonlSink(tmp_path / "changes.jsonl", "c")
    sink.fence()
    sink.schema(b"1", b'{"db":"d","schema":"s","table":"t","version":1}')
    sink.commit(STATE)
    for commit in (3, 7, 9):
        reading = {"s.t": {"since": Position(1, commit, 0).text}}
        back = replace(STATE.next(), tables=("s.t",), reading=reading)
        sink.commit(back)
        sink.commit(replace(back.next(), commit=11))
        sink.commit(STATE)
    sink.close()
    told = [json.loads(line) for line in (tmp_path / "changes.jsonl").read_text().splitlines()]
    assert [(event["op"], event["source"]["position"]) for event in told] == [
        ("t", Position(1, commit, 0).text) for commit in (3, 7, 9)
    ]


def test_a_large_transaction_is_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines wait on the disk; where a table's rows come again among them is told at its place."""
    monkeypatch.setattr(cdc.files.large_events, "IN_MEMORY", 100_000)
    sink, count, at = JsonlSink(tmp_path / "changes.jsonl", "c"), 10_000, 7_000
    sink.fence()
    sink.schema(b"1", b'{"db":"d","schema":"s","table":"t","version":1}')
    sink.commit(replace(STATE, commit=1, tables=("s.t",)))
    positions = [Position(1, 2, number).text for number in range(count)]
    filling = "x" * 1_000
    tracemalloc.start()
    for position in positions:
        event = {"op": "c", "after": filling, "source": {"position": position}}
        sink.write("p.s.t", b'{"id":1}', orjson.dumps(event))
    sink.commit(replace(STATE, tables=("s.t",), reading={"s.t": {"since": positions[at]}}))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    sink.close()
    told = [json.loads(line) for line in (tmp_path / "changes.jsonl").read_text().splitlines()]
    expected = [("c", position) for position in positions]
    assert [(event["op"], event["source"]["position"]) for event in told] == [
        *(*expected[:at], ("t", positions[at])),
        *expected[at:],
    ]
    assert most < 3_000_000, "of more than 10,000,000 bytes of lines"


def test_a_file_of_a_long_transaction_is_let_go_of() -> None:
    file = FULL.open("w+b")
    file.write(b"x")
    close_file(file)
    assert file.closed


LINE = b'{"op":"c","source":{"position":"1"}}'


def _moved(path: Path) -> None:
    path.rename(path.with_suffix(".1"))


def _rotated(path: Path) -> None:
    _moved(path)
    path.touch()


def _emptied(path: Path) -> None:
    path.write_bytes(b"")


def _written_to(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"theirs\n")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (Path.unlink, "it is not there any more"),
        (_moved, "it is not there any more"),
        (_rotated, "it was moved away, and another is in its place"),
        (_emptied, "lines were taken out of it"),
        (_written_to, "somebody else has written to it"),
    ],
)
def test_a_file_that_others_change_while_it_is_written(
    tmp_path: Path, change: Callable[[Path], None], what: str
) -> None:
    """No line goes where nobody finds it, and the next start cuts off nothing that was committed."""
    path = tmp_path / "changes.jsonl"
    sink = JsonlSink(path, "c")
    assert sink.fence() is None
    sink.write("p.s.t", b'{"id":1}', LINE)
    sink.commit(STATE)
    whole = path.read_bytes()
    change(path)
    sink.write("p.s.t", b'{"id":2}', LINE)
    with pytest.raises(OperatorError, match=f"is not as this connector has left it: {what}"):
        sink.commit(STATE)
    sink.close()
    path.write_bytes(whole if what != "somebody else has written to it" else path.read_bytes())
    assert sink.fence() == STATE
    sink.write("p.s.t", b'{"id":2}', LINE)
    sink.commit(STATE)
    sink.close()
    assert path.read_bytes() == whole + whole.replace(b'"id":1', b'"id":2')
