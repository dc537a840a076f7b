"""Processes that we start run the packages that are installed, not files of the folder they are started in."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.cli.running.supervise import supervise
from cdc.machine.stop_signals import HangUps
from cdc.model.errors import OperatorError
from sinks.client.options import weakness


def test_a_module_of_the_current_folder_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "click.py").write_text("open('run', 'w').close(); raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    files = (tmp_path / "a.yaml", tmp_path / "b.yaml")
    with pytest.raises(OperatorError, match="the connector ended with an error"):
        supervise(files, ["--until-caught-up"], HangUps())
    assert not (tmp_path / "run").exists()


def test_rows_that_leave_this_machine_unencrypted_are_warned_of() -> None:
    assert weakness({}, "localhost:9092,127.0.0.1,[::1]:9092") is None
    assert weakness({}, "PLAINTEXT://localhost:9092, 127.0.0.1,") is None
    assert weakness({"security.protocol": "SSL"}, "kafka.example:9093") is None
    assert "PLAINTEXT" in (weakness({}, "localhost:9092,kafka.example:9092") or "")
