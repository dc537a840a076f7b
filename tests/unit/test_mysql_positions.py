"""Binlog positions and sets of GTIDs: the server's text is read back as it was, and compared by number."""

from __future__ import annotations

from struct import pack
from uuid import UUID

import pytest

from cdc.model.errors import OperatorError
from connectors.mysql.binlog.positions import (
    EXACT,
    BinlogPosition,
    GtidPosition,
    GtidSet,
    GtidState,
    file_named,
    file_number,
    position_at,
)

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
B = "4e11fa47-71ca-11e1-9e33-c80aa9429562"


def test_files_are_compared_by_number() -> None:
    """Past 999999 names get longer, and sort before the old ones as text."""
    assert BinlogPosition("b.1000000", 4).commit > BinlogPosition("b.999999", 5_000_000).commit
    assert file_number("my.host-bin.000042") == 42
    assert file_named("b.999999", 1_000_000) == "b.1000000"
    assert file_named("my.bin.000001", 2) == "my.bin.000002"


@pytest.mark.parametrize("name", ["binlog", "binlog.", "binlog.index", "binlog.00x001", ""])
def test_what_is_no_file_of_a_binlog(name: str) -> None:
    with pytest.raises(OperatorError, match="not the name of a binlog"):
        file_number(name)


def test_offsets_beyond_4_gib_are_told_apart_in_their_order() -> None:
    """Of transactions, which are longer than a step, each has a commit position of its own, below the next file's."""
    offsets = [*range(EXACT - 200, EXACT + 400, 65), *range((1 << 32) - 650, (1 << 32) + 650, 65), 60 << 30, 66 << 30]
    commits = [BinlogPosition("b.000001", offset).commit for offset in offsets]
    assert sorted(set(commits)) == commits
    assert commits[-1] < BinlogPosition("b.000002", 4).commit
    for offset, commit in zip(offsets, commits, strict=True):
        found = position_at(commit, "b.000007")
        assert found.file == "b.000001"
        assert found.commit == commit
        assert 0 <= offset - found.offset < (64 if offset > EXACT else 1)


def test_an_offset_beyond_all_does_not_become_another_file() -> None:
    with pytest.raises(OperatorError, match="67 GiB"):
        _ = BinlogPosition("b.000001", 67 << 30).commit


@pytest.mark.parametrize(
    "text",
    ["", f"{A}:1-3:7", f"{A}:1,{B}:2-9", f"{A}:1-3,{A}:tagged:1-2:5,{B}:5"],
)
def test_sets_print_as_they_are_read(text: str) -> None:
    assert str(GtidSet.parse(text)) == text


def test_the_servers_line_breaks_capitals_and_tags_in_a_row_are_understood() -> None:
    found = GtidSet.parse(f"{A.upper()}:1-3:tag:4,\n{B}:1")
    assert str(found) == f"{A}:1-3,{A}:tag:4,{B}:1"


@pytest.mark.parametrize("text", ["x", f"{A}:a-", "1-2-3", f"{A[:-1]}:1", f"{A}:9-3", f"{A}:0-3"])
def test_what_is_no_set(text: str) -> None:
    with pytest.raises(OperatorError, match="not a set of GTIDs"):
        GtidSet.parse(text)


def test_a_set_grows_joins_and_shrinks() -> None:
    found = GtidSet.parse(f"{A}:1-3:5")
    found.add(f"{A}:4")
    assert str(found) == f"{A}:1-5"
    found.add(f"{A}:9")
    found.add(f"{A}:7")
    assert str(found) == f"{A}:1-5:7:9"  # one that is missing between two is missing
    found.add(f"{A}:8")
    assert str(found) == f"{A}:1-5:7-9"
    found = found.without([f"{A}:7", f"{A}:8"])
    found.add(f"{B}:tag:1")
    assert f"{A}:9" in found
    assert f"{A}:8" not in found
    assert f"{B}:1" not in found
    assert f"{B}:tag:1" in found
    assert str(found.without([f"{A}:3", f"{B}:tag:1", f"{A}:77"])) == f"{A}:1-2:4-5:9"
    assert str(found) == f"{A}:1-5:9,{B}:tag:1"


def test_subsets() -> None:
    small, large = GtidSet.parse(f"{A}:2-3"), GtidSet.parse(f"{A}:1-3,{B}:1")
    assert small <= large
    assert not large <= small
    assert GtidSet() <= small
    assert not GtidSet.parse(f"{A}:3-4") <= large


def test_a_set_as_the_dump_command_takes_it() -> None:
    """Ends lie behind the last number; with a tag the form is another, and says so in both ends of the count."""
    plain = GtidSet.parse(f"{A}:1-3:7").encode()
    assert plain == pack("<Q", 1) + UUID(A).bytes + pack("<QQQQQ", 2, 1, 4, 7, 8)
    tagged = GtidSet.parse(f"{A}:tag:1").encode()
    assert tagged == pack("<Q", 1 << 56 | 1 << 8 | 1) + UUID(A).bytes + b"\x06tag" + pack("<QQQ", 1, 1, 2)


def test_positions_of_mariadb() -> None:
    found = GtidPosition.parse("0-1-5, 1-2-7")
    assert found <= GtidState.parse("0-1-5,0-9-6,1-2-8")
    assert not found <= GtidState.parse("0-1-5,0-9-6")
    assert not found <= GtidState.parse("0-1-4,0-9-6,1-2-7")
    found.add("0-3-6")
    assert str(found) == "0-3-6,1-2-7"
    with pytest.raises(OperatorError, match="not a position"):
        GtidPosition.parse(A)
    with pytest.raises(OperatorError):
        GtidState.parse(A)


def test_what_a_reader_of_mariadb_has_seen() -> None:
    """Up to a domain's number when it began, of any server: a copy has not logged what its origin had. Then each."""
    seen = GtidState.begun("0-1-5,0-2-7,3-1-2", "0-9-6,4-8-1")
    assert GtidState.parse(str(seen)).unknown(0, seen) == []
    logged = GtidState.parse("0-1-9,0-2-7,0-8-6,0-9-8,3-1-2,4-7-1,4-7-2")
    assert logged.unknown(0, seen) == ["0-1-9", "0-9-8"]
    assert logged.unknown(3, seen) == []
    assert logged.unknown(4, seen) == ["4-7-2"]
    for gtid in ("0-1-8", "0-1-9", "0-9-8"):
        seen.add(gtid)
    assert logged.unknown(0, GtidState.parse(str(seen))) == []
