"""Files of a binlog that are left: by their end, by a server that crashed, and by one that begins its log again."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Final

import pytest

from cdc.model.errors import GapError, RetryableError
from connectors.mysql.binlog import events
from connectors.mysql.binlog.events import ARTIFICIAL
from connectors.mysql.binlog.positions import BinlogPosition
from connectors.mysql.replication.file_ends import FileEnds

_FIRST, _SECOND = "b.000001", "b.000002"
_AGAIN: Final = "the server has begun its log from the beginning: b.000001 is not the file that was read"


@dataclass
class Log:
    """When the server's files were begun, and how often it was asked."""

    begun: dict[str, int]
    asked: list[str] = field(default_factory=list)

    def made_at(self, position: BinlogPosition) -> int:
        self.asked.append(position.file)
        if position.file not in self.begun:
            raise GapError("binlog purged", hint="close the gap")
        return self.begun[position.file]


def head(at_s: int, *, started: bool = False) -> events.FormatDescription:
    header = events.Header(at_s, 15, 1, 122, 126, 0)
    return events.FormatDescription(header, 4, "9.7.4", at_s if started else 0, b"", checksum=True)


def rotation(file: str, *, artificial: bool) -> events.Rotate:
    """The end of a file in the log; or what a dump says before each file's head."""
    header = events.Header(0, 4, 1, 44, 0 if artificial else 500, ARTIFICIAL if artificial else 0)
    return events.Rotate(header, 4, file)


def reading(log: Log) -> FileEnds:
    """The first file, begun at 100."""
    ends = FileEnds(log.made_at)
    ends.turned(rotation(_FIRST, artificial=True), "")
    ends.turned(head(100), _FIRST)
    return ends


def on(ends: FileEnds, *, ended: bool, started: bool = False) -> None:
    """Go on in the second file, begun at 200."""
    if ended:
        ends.turned(rotation(_SECOND, artificial=False), _FIRST)
    ends.turned(rotation(_SECOND, artificial=True), _FIRST)
    ends.turned(head(200, started=started), _SECOND)


@pytest.mark.parametrize(
    ("begun", "ended", "started", "again"),
    [
        ({_FIRST: 100, _SECOND: 200}, True, False, False),
        ({_SECOND: 200}, True, False, False),  # removed as files are in time
        ({_FIRST: 100, _SECOND: 200}, False, True, False),  # a crash
        ({_FIRST: 100, _SECOND: 200}, False, False, False),  # whatever it was, the file is the one that was read
        ({_FIRST: 150, _SECOND: 200}, False, False, True),
        ({_SECOND: 200}, False, False, True),
    ],
)
def test_a_file_that_is_left(begun: dict[str, int], ended: bool, started: bool, again: bool) -> None:
    """Only one without an end in the log is asked about, and only one that is another now ends the connection."""
    log = Log(begun)
    ends = reading(log)
    with pytest.raises(RetryableError, match=_AGAIN) if again else contextlib.nullcontext():
        on(ends, ended=ended, started=started)
    assert log.asked == ([] if ended or started else [_FIRST])


def test_the_head_that_a_connection_begins_with() -> None:
    """Comes again whenever a dump is asked for, and leaves no file."""
    log = Log({})
    reading(log).turned(head(100), _FIRST)
    assert log.asked == []


def test_a_log_that_ends_before_what_was_read_of_it() -> None:
    log = Log({_FIRST: 100})
    ends = reading(log)
    ends.look(BinlogPosition(_FIRST, 900), BinlogPosition(_FIRST, 900))
    ends.look(BinlogPosition(_FIRST, 1000), BinlogPosition(_FIRST, 1200))
    assert log.asked == []
    log.begun[_FIRST] = 150
    with pytest.raises(RetryableError, match=_AGAIN):
        ends.look(BinlogPosition(_FIRST, 1200), BinlogPosition(_FIRST, 500))


def test_a_log_of_which_nothing_comes() -> None:
    """The new one is longer already, or a transaction is so large that reading it takes that long."""
    log = Log({_FIRST: 100})
    ends, stands = reading(log), BinlogPosition(_FIRST, 1000)
    ends.look(stands, BinlogPosition(_FIRST, 1200))
    ends.look(stands, BinlogPosition(_FIRST, 5000))
    assert log.asked == [_FIRST]
    log.begun[_FIRST] = 150
    with pytest.raises(RetryableError, match=_AGAIN):
        ends.look(stands, BinlogPosition(_FIRST, 5000))


def test_nothing_is_compared_before_a_file_has_begun() -> None:
    log = Log({})
    FileEnds(log.made_at).look(BinlogPosition(_FIRST, 1000), BinlogPosition(_FIRST, 4))
    assert log.asked == []
