"""The position file: it is the old one or the new one, of one program at a time, and nothing else is taken for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import cdc
from cdc.files.position_file import Contents, PositionFile
from cdc.model.state import Phase, State

STATE = State(connector="c", identity={"database": "d"}, phase=Phase.STREAM, epoch=1, offset={"lsn": "0/7"}, commit=7)
WHOLE = Contents(STATE, {b'{"table":"t"}': b'{"columns":[]}'}, {b"key": b"command"}, through="00000001.7.1", length=9)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = PositionFile(tmp_path / "a.pos")
    assert file.read() == Contents()
    for contents in (Contents(), WHOLE):
        file.write(contents)
        assert file.read() == contents
    assert not (tmp_path / "a.pos.new").exists()


def test_it_is_on_the_disk_before_it_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, done = PositionFile(tmp_path / "a.pos"), list[str]()
    fsync, replace = os.fsync, os.replace

    def noted(what: str, call: Any) -> Any:
        def calls(*given: Any) -> None:
            done.append(what)
            call(*given)

        return calls

    monkeypatch.setattr(os, "fsync", noted("fsync", fsync))
    monkeypatch.setattr(os, "replace", noted("replace", replace))
    file.write(WHOLE)
    assert done == ["fsync", "replace", "fsync"]


@pytest.mark.parametrize("at", ["fsync", "replace", "open"])
def test_a_write_that_fails_leaves_the_old_one(at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = PositionFile(tmp_path / "a.pos")
    file.write(WHOLE)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open" if at == "open" else f"os.{at}", full)
        with pytest.raises(cdc.OperatorError, match="cannot be read or written: No space left"):
            file.write(Contents())
    assert file.read() == WHOLE


def test_one_program_at_a_time(tmp_path: Path) -> None:
    first = PositionFile(tmp_path / "a.pos")
    with pytest.raises(cdc.OperatorError, match="is in use"):
        PositionFile(tmp_path / "a.pos")
    first.write(WHOLE)
    first.has_ended = True
    second = PositionFile(tmp_path / "a.pos")  # nothing follows with the first any more
    assert second.read() == WHOLE
    with pytest.raises(cdc.OperatorError, match="is closed"):
        first.write(Contents())
    second.close()
    second.close()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda text: text[:-9], "is no position file, or it is damaged"),
        (lambda text: text.replace(b"00000001", b"00000002"), "is no position file, or it is damaged"),
        (lambda _: b"", "is no position file, or it is damaged"),
        (lambda _: b"[]", "is no position file, or it is damaged"),
        (lambda _: b'{"checksum":"","format":1}', "is no position file, or it is damaged"),
        (lambda text: text.replace(b'"format": 1', b'"format": 2'), "was written by a newer release"),
    ],
)
def test_another_text_is_no_position(change: Any, what: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pos"
    path.write_bytes(change(WHOLE.to_bytes()))
    with pytest.raises(cdc.OperatorError, match=what):
        PositionFile(path).read()


def test_a_copy_of_the_process_neither_holds_it_nor_writes_it(tmp_path: Path) -> None:
    """As a pool of workers by fork is, which may be there for longer than the one that follows."""
    path = tmp_path / "a.pos"
    file = PositionFile(path)
    file.write(WHOLE)
    told, tell = os.pipe()
    stay, leave = os.pipe()
    copy = os.fork()
    if copy == 0:
        os.close(leave)
        try:
            file.write(Contents())
        except cdc.OperatorError as exc:
            os.write(tell, exc.message.encode())
        os.close(tell)
        os.read(stay, 1)  # and it has not let go of the file
        os._exit(0)
    os.close(tell)
    try:
        assert b"is another process's" in os.read(told, 1000)
        assert file.read() == WHOLE
        with pytest.raises(cdc.OperatorError, match="is in use"):
            PositionFile(path)
        file.close()
        again = PositionFile(path)
        again.close()
    finally:
        os.close(leave)
        os.waitpid(copy, 0)
