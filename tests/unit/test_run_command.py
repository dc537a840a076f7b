"""`cdc run` and `cdc status` on the command line: options, several connectors, signs of life, lag."""

from __future__ import annotations

import errno
import logging
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

import cdc.cli.running.run
from cdc.capture.pipeline import Report
from cdc.cli.ending import error_of, files_given, show
from cdc.cli.inspecting.check import shown
from cdc.cli.inspecting.status import of_server
from cdc.cli.inspecting.tail import has_no_reader
from cdc.cli.main import cdc as command_line
from cdc.cli.running import monitored
from cdc.cli.running import run as run_module
from cdc.cli.running.apply import Told, apply
from cdc.cli.running.monitored import Followed, monitored_connector
from cdc.cli.running.run import _How, run
from cdc.cli.running.run_progress import RunProgress
from cdc.cli.running.supervise import supervise
from cdc.cli.running.view import view
from cdc.cli.terminal import Alive, ByLevel, UtcFormatter, instant, place_of, say, show_progress
from cdc.config.config import ConnectorConfig, load_connector
from cdc.config.findings import Finding, Level
from cdc.dev.servers import launch
from cdc.machine.child_processes import PRIVATE_FOLDER
from cdc.machine.stop_signals import HangUps, stopping
from cdc.model.errors import ConfigError, FencedError, OperatorError
from cdc.model.hints import in_hints, pasteable
from cdc.model.state import Phase, State
from cdc.model.suggestion import did_you_mean
from cdc.monitor.status import source_ms_of
from cdc.telemetry import server_watch
from spark_apply.job.batch.counts import TableCount
from spark_apply.job.pace import Pace
from spark_apply.views.running.commands import Turn


@pytest.mark.parametrize(
    ("words", "hint", "shown"),
    [
        (["pause", "my shop.yaml"], "cdc run CONNECTOR.yaml", "cdc run 'my shop.yaml'"),
        (
            ["run", "--wait", "5m", "a.yaml"],
            "cdc check CONNECTOR.yaml, then APPLY.yaml",
            "cdc check a.yaml, then APPLY.yaml",
        ),
        (["run", "a.yaml", "b.yaml"], "cdc check CONNECTOR.yaml", "cdc check CONNECTOR.yaml"),
        (["verify", "c.yaml", "a.yaml"], "cdc verify CONNECTOR.yaml APPLY.yaml", "cdc verify c.yaml a.yaml"),
        (["offsets", "show", "c.yaml"], "cdc offsets show FILE", "cdc offsets show FILE"),
        (["offsets", "import", "CONNECTOR", "o.json"], "cdc run CONNECTOR.yaml", "cdc run CONNECTOR"),
        (["offsets", "import", "stores", "CONNECTOR"], "cdc apply APPLY.yaml", "cdc apply stores"),
        (
            ["offsets", "import", "stores", "my o.json"],
            "cdc offsets import APPLY.yaml OFFSETS.json --force",
            "cdc offsets import stores 'my o.json' --force",
        ),
        (["offsets", "import", "stores", "CONNECTOR"], "cdc run CONNECTOR.yaml", "cdc run CONNECTOR.yaml"),
        (["offsets"], "cdc run CONNECTOR.yaml", "cdc run CONNECTOR.yaml"),
        (["walk", "c.yaml"], "cdc run CONNECTOR.yaml", "cdc run CONNECTOR.yaml"),
        ([], "cdc run CONNECTOR.yaml", "cdc run CONNECTOR.yaml"),
        (["status", "stores"], "cdc apply APPLY.yaml, CONNECTOR.yaml", "cdc apply stores, CONNECTOR.yaml"),
        (["status", "CONNECTOR"], "cdc run CONNECTOR.yaml", "cdc run CONNECTOR"),
        (["apply", "stores", "--plan"], "cdc apply APPLY.yaml", "cdc apply stores"),
        (["view", "plan", "views"], "cdc view run VIEWS.yaml", "cdc view run views"),
        (["view", "run", "none"], "cdc view run VIEWS.yaml", "cdc view run VIEWS.yaml"),
        (["monitor", "stores", "views"], "cdc view run VIEWS.yaml", "cdc view run VIEWS.yaml"),
        (["erase", "c.yaml", "--apply", "a.yaml"], "cdc rebuild APPLY.yaml", "cdc rebuild a.yaml"),
        (
            ["fleet", "add", "c.yaml", "--config", "a b"],
            "cdc fleet add --replace CONNECTOR.yaml; cdc fleet remove x --fleet g",
            "cdc fleet add --config 'a b' --replace c.yaml; cdc fleet remove --config 'a b' x --fleet g",
        ),
        (
            ["fleet", "status", "--fleet", "f", "--bootstrap-servers", "h:1,i:2"],
            "then: cdc fleet restart x",
            "then: cdc fleet restart --fleet f --bootstrap-servers h:1,i:2 x",
        ),
        (["fleet", "status"], "then: cdc fleet restart x", "then: cdc fleet restart x"),
        (["status", "c.yaml"], "cdc fleet restart x", "cdc fleet restart x"),
        (["verify", "APPLY.yaml", "a.yaml"], "cdc verify CONNECTOR.yaml APPLY.yaml", "cdc verify APPLY.yaml a.yaml"),
    ],
)
def test_a_hint_names_the_files_that_the_command_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], hint: str, shown: str
) -> None:
    """So it is safe to paste; of two files of a kind, which one is meant is not known."""
    monkeypatch.chdir(tmp_path)
    for name in ("CONNECTOR", "stores", "views"):
        Path(name).write_text(f"name: x\n{name}: {{}}\n")
    assert pasteable(hint, files_given(command_line, words)) == shown


def test_a_member_s_copy_of_a_file_is_named_to_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes when the connector has ended, and so does a command that names it."""
    file = tmp_path / "shop.yaml"
    words = ["run", str(file)]
    assert str(file) in pasteable("cdc check CONNECTOR.yaml", files_given(command_line, words))
    monkeypatch.setenv(PRIVATE_FOLDER, str(tmp_path))
    assert pasteable("cdc check CONNECTOR.yaml", files_given(command_line, words)) == "cdc check CONNECTOR.yaml"
    done = CliRunner().invoke(command_line, [*words, "--log-format", "json"])
    assert done.exit_code == ConfigError.exit_code
    assert str(tmp_path) not in done.stderr.partition('"hint"')[0]
    assert '"message":"shop.yaml: cannot be read' in done.stderr


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("public.A", "public.a"),
        ("orders", "shop.Orders"),
        ("shop.ordres", "shop.Orders"),
        ("x", ""),
        ("public.a", ""),
    ],
)
def test_a_name_that_somebody_may_have_meant(name: str, meant: str) -> None:
    """Capital letters and a schema are forgotten more often than letters are mistaken."""
    assert did_you_mean(name, ["public.w", "public.a", "shop.Orders"], "") == (
        f"did you mean {meant}?" if meant else ""
    )


def test_hints_within_what_a_command_shows_name_its_file_once() -> None:
    """Also where the file is called as hints call it, and in nothing but hints."""
    files = {"CONNECTOR.yaml": Path("conf/CONNECTOR.yaml")}
    found = {"hint": "cdc run CONNECTOR.yaml", "slot": {"hint": None}, "left": [{"hint": "CONNECTOR.yaml", "why": "x"}]}
    shown = in_hints({**found, "table": "CONNECTOR.yaml"}, files)
    assert shown == {
        "hint": "cdc run conf/CONNECTOR.yaml",
        "slot": {"hint": None},
        "left": [{"hint": "conf/CONNECTOR.yaml", "why": "x"}],
        "table": "CONNECTOR.yaml",
    }


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ({"revisions_behind": 1200}, [("behind", "1,200 revisions")]),
        ({"revisions_behind": None}, [("behind", "unknown revisions")]),
        ({"binlog": {"kept_for_seconds": None}}, [("binlog", "kept for ever")]),
        ({"unreachable": "refused"}, [("source", "refused")]),
        ({}, [("slot", "none")]),
    ],
)
def test_status_says_what_the_server_keeps(source: dict[str, Any], lines: list[tuple[str, str]]) -> None:
    """Each kind of source by its own measure: an etcd has no slot."""
    assert of_server(source, None) == lines


def test_a_warning_is_a_warning_and_an_error_is_one() -> None:
    told = [logging.LogRecord("cdc", level, "", 0, "%s is gone", ("x",), None) for level in (30, 40)]
    assert [ByLevel().format(each) for each in told] == ["warning: x is gone", "error: x is gone"]


def test_a_status_line_is_as_wide_as_the_terminal_that_it_is_drawn_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever stdout is: `cdc run … > log`."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys.stderr, "fileno", lambda: 2)
    monkeypatch.setattr(os, "get_terminal_size", lambda number: os.terminal_size((20 if number == 2 else 90, 9)))
    show_progress("shop: at lsn 0/1B56658, in no hurry")
    assert capsys.readouterr().err.endswith("shop: at lsn 0/1B56")


def test_a_status_line_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In a narrow window it is cut off; a position is shown without the hash in it."""
    monkeypatch.setenv("COLUMNS", "20")
    show_progress(f"shop: at {place_of({'lsn': '0/1B56658', 'last': '0/1B56540 3685cf91'})}, in no hurry")
    assert capsys.readouterr().err.endswith("shop: at lsn 0/1B56")


def test_a_groups_help_has_each_line_whole() -> None:
    """Where a first sentence is long it goes on in the next line; click cuts it off."""
    told = CliRunner().invoke(command_line, ["fleet", "--help"]).output
    assert "since when,\n           and its last error with the hint." in told


@pytest.mark.parametrize(
    ("words", "waits", "files"),
    [
        (["a.yaml"], None, ["a.yaml"]),
        (["--wait", "a.yaml"], float("inf"), ["a.yaml"]),
        (["a.yaml", "--wait"], float("inf"), ["a.yaml"]),
        (["--wait", "90s", "a.yaml"], 90.0, ["a.yaml"]),
        (["--wait=5m", "a.yaml"], 300.0, ["a.yaml"]),
        (["a.yaml", "--wait", "1h"], 3600.0, ["a.yaml"]),
        (["--wait", "--take-over", "a.yaml", "b.yaml"], float("inf"), ["a.yaml", "b.yaml"]),
    ],
)
def test_wait_may_have_a_time_or_none(words: list[str], waits: float | None, files: list[str]) -> None:
    context = run.make_context("run", words)
    assert context.params["wait_s"] == waits
    assert [str(path) for path in context.params["files"]] == files
    assert context.params["take_over"] is ("--take-over" in words)


def test_figures_are_of_the_server_that_is_followed_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was read again with another password: its server was shown as away for ever, by the old one."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    files = []
    for password in ("old", "new"):
        file = tmp_path / f"{password}.yaml"
        file.write_text(
            f"name: c\nsource: {{type: postgres, url: 'postgresql://u:{password}@h/d', tables: [public.t]}}\n"
            f"sink: {{type: kafka, bootstrap_servers: 'h:1'}}\nmetrics: {{listen: '127.0.0.1:{port}'}}\n"
        )
        files.append(load_connector(file))
    asked: queue.SimpleQueue[str] = queue.SimpleQueue()

    def standing(config: ConnectorConfig, _state: State | None) -> dict[str, Any]:
        asked.put(config.source.url)
        return {}

    monkeypatch.setattr(monitored.registry, "standing", lambda _: standing)
    monkeypatch.setattr(server_watch, "EVERY_S", 0.01)
    monkeypatch.setattr(run_module.registry, "source", lambda _: lambda: None)
    followed, how = Followed(files[0]), _How(False, None, None, False, "text")
    before, now = (run_module._parts(config, how, followed) for config in files)
    with monitored_connector(followed, {}):
        for parts, password in ((before, "old"), (now, "new"), (before, "old")):  # and back, where it is refused
            parts.open_source()
            while f"u:{password}@" not in asked.get(timeout=60):
                pass


def test_processes_of_several_files_are_given_the_options() -> None:
    assert _How(True, 90.0, float("inf"), True, "json").flags() == [
        "--until-caught-up", "--wait=90.000s", "--take-over", "--verbose", "--log-format=json"
    ]  # fmt: skip
    assert _How(False, None, None, False, "text").flags() == []
    assert _How(False, None, 20.0, False, "text").flags() == ["--take-over-within=20.000s"]


def test_two_files_of_one_address_of_metrics_are_refused(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.yaml" for name in "ab"]
    for file in files:
        file.write_text(
            f"name: {file.stem}\nsource: {{type: postgres, url: 'postgresql://h/d', tables: [public.t]}}\n"
            "sink: {bootstrap_servers: 'k:1'}\nmetrics: {listen: '127.0.0.1:9187'}\n"
        )
    done = CliRunner().invoke(run, [str(file) for file in files])
    assert done.exit_code == 2
    assert "two files name the address of their metrics 127.0.0.1:9187" in done.stderr


def _scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *scripts: str) -> tuple[Path, ...]:
    """Let the processes of connectors be these Python programs."""
    files = tuple(tmp_path / f"{n}.yaml" for n in range(len(scripts)))
    programs = dict(zip(map(str, files), scripts, strict=True))
    popen = cdc.cli.running.supervise.subprocess.Popen

    def started(command: list[str], **more: Any) -> Any:
        return popen([sys.executable, "-c", programs[command[command.index("run") + 1]]], **more)

    monkeypatch.setattr(cdc.cli.running.supervise.subprocess, "Popen", started)
    monkeypatch.setattr(cdc.cli.running.supervise.signal, "signal", lambda *_: None)
    return files


def test_one_that_fails_ends_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other goes on until it ends by itself; then the exit code is that of the first that failed."""
    done = tmp_path / "done"
    good = f"import time; time.sleep(1); open({str(done)!r}, 'w')"
    files = _scripts(tmp_path, monkeypatch, "raise SystemExit(3)", good)
    with pytest.raises(OperatorError, match=r"0\.yaml: the connector ended with an error") as ended:
        supervise(files, [], HangUps())
    assert ended.value.exit_code == 3
    assert done.exists()


@pytest.mark.parametrize(("codes", "whole"), [((4, 1), 1), ((3, 1), 1), ((1, 4), 1), ((4, 3), 4), ((2, 137), 137)])
def test_an_error_that_a_restart_may_help_goes_first(
    codes: tuple[int, int], whole: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the unit of several connectors is not started again for the one that needs no more than that."""
    first, then = codes
    late = f"import time; time.sleep(0.5); raise SystemExit({then})"
    files = _scripts(tmp_path, monkeypatch, f"raise SystemExit({first})", late)
    with pytest.raises(OperatorError) as ended:
        supervise(files, [], HangUps())
    assert ended.value.exit_code == whole


def test_all_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    supervise(_scripts(tmp_path, monkeypatch, "", ""), [], HangUps())


def test_what_a_signal_ended_has_a_shells_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = _scripts(tmp_path, monkeypatch, "", "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(OperatorError, match=r"1\.yaml") as ended:
        supervise(files, [], HangUps())
    assert ended.value.exit_code == 137


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("flag", "code"), [("--until-caught-up", 128), ("--verbose", 0)])
def test_what_was_to_take_everything_says_that_it_has_not(
    flag: str, code: int, number: signal.Signals, tmp_path: Path
) -> None:
    """What comes after it in a script would go on with a part; one that follows without end has done what it was to."""
    file = tmp_path / "c.yaml"
    file.write_text(
        "name: c\nsource: {type: postgres, url: 'postgresql://127.0.0.1:1/d', tables: [a.b]}\n"
        f"sink: {{type: jsonl, path: {tmp_path / 'changes'}}}\n"
    )
    with subprocess.Popen(
        [sys.executable, "-m", "cdc", "run", str(file), flag, "--wait"], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        told = [process.stderr.readline()]
        while told[-1] and "cannot be reached" not in told[-1]:
            told.append(process.stderr.readline())
        process.send_signal(number)
        told += process.stderr.readlines()
        assert process.wait(timeout=30) == (code + number if code else 0), "".join(told)


_SOURCE = "name: j\nsource: {bootstrap_servers: 'h:1', topic_prefix: p}\n"


@pytest.mark.parametrize(("flags", "number", "code"), [
    ([], signal.SIGINT, 0), (["--once"], signal.SIGINT, 130), (["--once"], signal.SIGTERM, 143),
    (["--once"], signal.SIGTERM, 0),
])  # fmt: skip
def test_a_job_that_was_to_take_everything_says_that_it_has_not(
    flags: list[str], number: signal.Signals, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its summary is printed nevertheless: of what it has taken. Where that is all, the signal only cut the upkeep."""

    def ended(*_: object, **__: object) -> SimpleNamespace:
        inside = Turn()
        with stopping(inside):  # as the work does it: the command must know of the signal, too
            signal.raise_signal(number)
        assert inside.is_set()
        done = {"tables": {}, "aside": {}, "stopped": {}, "batches": 1, "behind": False, "seconds": 1.0}
        return SimpleNamespace(as_json=lambda: done, took_all=code == 0)

    monkeypatch.setitem(sys.modules, "spark_apply.job.job", SimpleNamespace(run_apply=ended))
    monkeypatch.setitem(sys.modules, "spark_apply.views.job", SimpleNamespace(run_views=ended))
    applied, viewed = tmp_path / "apply.yaml", tmp_path / "views.yaml"
    applied.write_text(
        _SOURCE + "stores: {w: {type: iceberg, path: ./w}}\ntables: {a.b: {stores: [w]}}\ncheckpoint: ./c\n"
    )
    viewed.write_text(_SOURCE + "state: ./s\nviews: {v: {sql: SELECT id FROM a.b, key: [id]}}\n")
    for command, words in ((apply, [str(applied)]), (view, ["run", str(viewed)])):
        done = CliRunner().invoke(command, [*words, "--json", *flags], standalone_mode=False)
        assert (done.return_value, done.exception) == (code, None)
        assert done.stdout.count("\n") == 1


@pytest.mark.parametrize(("one", "told"), [("raise SystemExit(143)", signal.SIGINT), ("", None)])
def test_several_that_were_asked_to_end_have_not_failed(
    one: str, told: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one ended by SIGTERM before it had taken everything, the command says which signal it was asked by."""
    handlers: dict[int, Any] = {}
    first = f"import time; time.sleep(0.3); {one}" if one else ""  # not before both are watched
    files = _scripts(tmp_path, monkeypatch, first, "import time; time.sleep(0.8)" if one else "")
    sleep = time.sleep
    monkeypatch.setattr(cdc.cli.running.supervise.signal, "signal", handlers.__setitem__)

    def asked(_: float) -> None:
        sleep(0 if one else 0.5)
        handlers.pop(signal.SIGINT, lambda *_: None)(signal.SIGINT, None)

    monkeypatch.setattr(cdc.cli.running.supervise.time, "sleep", asked)
    assert supervise(files, [], HangUps()) == told


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel is asked to end children with their parent on Linux")
def test_connectors_end_with_the_process_that_runs_them(tmp_path: Path) -> None:
    """After a kill -9 they went on by themselves, and those of the next process stood by, or found their port taken."""
    files = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    for file in files:
        file.write_text(
            f"name: {file.stem}\nsource: {{type: postgres, url: 'postgresql://127.0.0.1:1/d', tables: [public.t]}}\n"
            "sink: {bootstrap_servers: '127.0.0.1:1'}\n"
        )
    words = [sys.executable, "-m", "cdc", "run", "--wait", *map(str, files)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        told = ""
        while not ("a:" in told or "trying again" in told):
            told += (line := process.stderr.readline())
            assert line, told
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) == len(files)
        process.kill()
        process.wait(60)
        deadline = time.monotonic() + 60
        while any(launch.started_at(int(pid)) for pid in children):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_lines_are_in_utc_with_a_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/Caracas")
    time.tzset()
    try:
        record = logging.LogRecord("cdc", logging.INFO, "", 0, "words", (), None)
        record.created = 1_700_000_000.25
        assert UtcFormatter().format(record) == "2023-11-14T22:13:20.250+00:00 INFO    words"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_sign_of_life_comes_where_nothing_else_was_said() -> None:
    said = threading.Event()
    with Alive(said.set, every_s=0.02):
        assert said.wait(60)
    quiet: list[int] = []
    with Alive(lambda: quiet.append(1), every_s=60.0) as alive:
        alive.heard(logging.LogRecord("cdc", logging.INFO, "", 0, "", (), None))
    assert not quiet


def _report(**more: Any) -> Report:
    state = State(connector="c", identity={}, phase=Phase.STREAM, epoch=1, offset={"lsn": "0/9"}, **more)
    return Report(state.phase, 5, (), state)


def test_what_an_idle_connector_says(caplog: pytest.LogCaptureFixture) -> None:
    """Up to when all is in Kafka; and since when nothing was committed, if that is long ago."""
    caplog.set_level(logging.INFO)
    shown = RunProgress("c", live=False)
    shown.alive()
    assert "c: alive; no position committed for" in caplog.messages[-1]
    shown(_report(source_ms=1_700_000_000_000))
    shown.alive()
    assert f"all that was committed up to {instant(1_700_000_000)} is in Kafka" in caplog.messages[-1]
    shown._reported_s -= 90
    shown.alive()
    assert re.search("no position committed for .*: the last one is lsn 0/9$", caplog.messages[-1])


def test_how_a_run_has_ended(caplog: pytest.LogCaptureFixture) -> None:
    """A copy that has stood by has committed nothing, and does not say that it has."""
    caplog.set_level(logging.INFO)
    shown = RunProgress("c", live=False)
    shown.stopping = True
    shown.done()
    assert caplog.messages[-1] == "c: stopped, nothing was written"
    shown(_report())
    shown.done()
    assert caplog.messages[-1] == "c: stopped, position committed; 5 events in this run"


@pytest.mark.parametrize(
    ("phase", "source_ms", "lag_bytes", "upto"),
    [
        (Phase.STREAM, 5_000, 65_000_000, 5_000),  # behind: as old as what was read last, however young the commit
        (Phase.STREAM, 5_000, 0, 45_000),  # nothing at the source is not in Kafka
        (Phase.STREAM, 5_000, None, 5_000),  # the server does not answer: the position still says so much
        (Phase.STREAM, 0, 10, None),
        (Phase.SNAPSHOT, 5_000, 10, None),  # rows are still missing
    ],
)
def test_lag_is_the_age_of_what_is_in_kafka(
    phase: Phase, source_ms: int, lag_bytes: int | None, upto: int | None
) -> None:
    state = State(connector="c", identity={}, phase=phase, epoch=1, source_ms=source_ms)
    assert source_ms_of(state, lag_bytes, 45_000) == upto


def test_an_apply_job_off_a_terminal_says_what_it_told_last(capsys: pytest.CaptureFixture[str]) -> None:
    """With the time of that, which tells a job that stands still from one that goes on."""
    told = Told("shop")
    told("batch 7: 12 rows handed to stores")
    assert capsys.readouterr().err == "", "of batches once a minute"
    told.say()
    line = capsys.readouterr().err
    assert line.rstrip().endswith("INFO    shop: batch 7: 12 rows handed to stores")
    told.say()
    line = capsys.readouterr().err
    instants = re.findall(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line)
    assert len(instants) == 2
    assert line.rstrip().endswith(
        "INFO    shop: running; last told at " + instants[1] + ": batch 7: 12 rows handed to stores"
    )
    told("following the topics")
    told("warning: public.a in copy is set aside")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == [
        *("INFO    shop: following the topics", "WARNING shop: public.a in copy is set aside"),
    ]


@pytest.mark.parametrize("live", [False, True])
def test_what_a_job_tells_steers_no_terminal(live: bool, capfd: pytest.CaptureFixture[str]) -> None:
    """It names tables, and who makes one chooses its name."""
    Told("shop", live=live)("warning: public.a\x9b2J\nb in copy is set aside")
    assert capfd.readouterr().err.endswith("public.a\\x9b2J\\nb in copy is set aside\n")


def test_what_a_job_tells_names_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    @click.argument("file", metavar="APPLY.yaml", type=click.Path(path_type=Path))
    def tells(file: Path) -> None:
        Told("copies")("warning: public.a is set aside; cdc rebuild APPLY.yaml --table public.a")

    tells.main(["a b.yaml"], standalone_mode=False)
    assert "is set aside; cdc rebuild 'a b.yaml' --table public.a" in capsys.readouterr().err


def test_a_line_about_a_batch_says_rows_lag_and_time() -> None:
    counts = {("public.a", "lake"): TableCount(keys=3, position="7"), ("public.b", "lake"): TableCount(keys=1)}
    pace = Pace(counts)
    assert pace.line(1, took_s=0.25, source_ms=None) == (
        "batch 1: 4 rows handed to stores, 4 in the last minute, batch time 0.2 s, position 7"
    )
    counts["public.b", "lake"].keys += 1_000
    line = pace.line(2, took_s=1.0, source_ms=0)
    assert line.startswith("batch 2: 1004 rows handed to stores, 1,004 in the last minute, ")
    assert " s behind the source, batch time 1.0 s" in line


def test_a_pipe_that_nobody_reads_any_more(tmp_path: Path) -> None:
    """`cdc tail … | head` must end also while no record comes."""
    read, write = os.pipe()
    assert not has_no_reader(write)
    os.close(read)
    assert has_no_reader(write)
    os.close(write)
    with (tmp_path / "file").open("wb") as file:
        assert not has_no_reader(file.fileno())


def _run(code: str, redirected: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    words = ["bash", "-c", f'exec "$0" -c "$1" {redirected}', sys.executable, code]
    return subprocess.run(words, env={**os.environ, **environment}, capture_output=True, timeout=60, check=False)


_COMMAND = "from cdc.cli.main import main; main(['--help'])"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_names_of_every_alphabet_leave_through_a_pipe_in_utf_8(encoding: str) -> None:
    """JSON is UTF-8, whatever the terminal that started the command can show."""
    code = "from cdc.cli import main; main._write_any_name(); print('\\U0001f600 \\u00fc')"
    done = _run(code, "", PYTHONIOENCODING=encoding)
    assert done.stdout.decode() == "\U0001f600 ü\n", done.stderr


def test_a_full_disk_behind_stdout_is_an_error_of_ours() -> None:
    done = _run(_COMMAND, ">/dev/full")
    assert (done.returncode, done.stderr.decode().splitlines()[0]) == (
        1,
        "error: stdout, or a temporary file, cannot be written: No space left on device",
    )
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("redirected", ["2>/dev/full", "2> >(exec true)", "2>&-"])
def test_an_exit_code_needs_nobody_who_reads_the_error(redirected: str) -> None:
    """A supervisor goes by the code: 3 is not started again, 1 is. A log's disk may be full, its reader gone."""
    code = (
        "import time; from cdc.cli import main; from cdc.model.errors import FencedError\n"
        "def fenced(*_, **__): time.sleep(0.3); raise FencedError('another copy', hint='none')\n"
        "main.cdc.main = fenced\nmain.main([])"
    )
    done = _run(code, redirected)
    assert done.returncode == FencedError.exit_code
    assert b"Traceback" not in done.stderr


def test_stdin_may_be_closed() -> None:
    """`cdc offsets import FILE -` reads it."""
    done = _run("from cdc.cli.main import main; main(['offsets', 'import', 'none.yaml', '-'])", "<&-")
    assert (done.returncode, b"Traceback" in done.stderr) == (2, False)


def test_a_folder_out_of_reach_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    at = tmp_path / "file" / "below"
    done = _run(f"from cdc.cli.main import main; main(['dev', 'up', 'postgres', '--dir', {str(at)!r}])", "")
    assert done.returncode == 1
    said = done.stderr.decode().splitlines()
    assert said[0].endswith("cannot be made, read or written: Not a directory")
    assert len(said) == 2


def test_no_folder_for_temporary_files_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with a read-only root and nothing at `/tmp`: the error of Python names no file."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/none"])
    with pytest.raises(FileNotFoundError) as caught:
        tempfile.mkdtemp()
    error = error_of(caught.value)
    assert error is not None
    assert "cannot be kept in" in error.message
    assert error_of(FileNotFoundError(errno.ENOENT, "No such file or directory")) is None


def test_standard_streams_may_be_closed() -> None:
    """As some schedulers start commands: no connection to a server gets the number of stdout."""
    code = "from cdc.cli import main; main._write_any_name(); import os; print('x'); os._exit(os.open('/', 0) < 3)"
    for closed in (">&-", ">&- 2>&-", ">&- 2>&- <&-"):
        assert _run(code, closed).returncode == 0
        assert _run(_COMMAND, closed).returncode == 0


def test_names_steer_no_terminal_and_begin_no_line(capfd: pytest.CaptureFixture[str]) -> None:
    """Who may make a table chooses its name: it must not look like a line of the log, nor clear the screen."""
    name = "s.a\x1b[2J\n2026-01-01T00:00:00.000+00:00 INFO    all is well\r\x9b31m"
    record = logging.makeLogRecord({"msg": "table %s é", "args": (name,), "levelno": logging.ERROR})
    fix = f"ALTER TABLE “{name}”"
    finding = Finding(Level.ERROR, f"table {name}", f"table {name}: no key", fix)
    said = [UtcFormatter().format(record), ByLevel().format(record)]
    said += [shown(finding, terminal=False).partition("fix:")[0], shown(finding, terminal=True).partition("\n")[0]]
    show(OperatorError(f"table {name}", hint=fix), {})
    show_progress(f"reading {name}")
    say(f"differs  {name} in warehouse", err=True)
    told = capfd.readouterr().err.replace("\rreading", "")  # off a terminal click leaves out what steers one
    assert not any(steering in line for line in (*said, told) for steering in ("\x1b[2J", "\x9b", "\r"))
    assert not any("\n" in line for line in said)
    assert all("a\\x1b[2J\\n2026" in line for line in said)
    assert "é" in said[0]
