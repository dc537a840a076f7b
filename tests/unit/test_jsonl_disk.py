"""A disk that is full: a file of JSON lines, and those of long transactions, end with one error of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.model.errors import OperatorError
from cdc.model.state import Phase, State
from connectors.mysql.binlog.spill import close_file
from sinks.jsonl import JsonlSink

FULL = Path("/dev/full")
STATE = State(connector="c", identity={"database": "d"}, phase=Phase.STREAM, epoch=1, offset={"lsn": "0/7"}, commit=7)

pytestmark = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full, which Linux has")


def test_lines_that_a_full_disk_does_not_take(tmp_path: Path) -> None:
    """They are not committed, and what is left of them in memory does not hide the error when the sink is closed."""
    sink = JsonlSink(tmp_path / "changes.jsonl", "c")
    assert sink.fence() is None
    assert sink._file is not None
    sink._file.close()
    sink._file = FULL.open("ab")
    sink.write("p.s.t", b'{"id":1}', b'{"op":"c","source":{"position":"1"}}')
    with pytest.raises(OperatorError, match="cannot be written: No space left on device"):
        sink.commit(STATE)
    sink.close()
    assert sink.fence() is None, "nothing was committed"
    sink.commit(STATE)
    sink.close()


def test_a_file_of_a_long_transaction_is_let_go_of() -> None:
    file = FULL.open("w+b")
    file.write(b"x")
    close_file(file)
    assert file.closed
