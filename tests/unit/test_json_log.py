"""Log lines as JSON: each line is one object, whatever is in it, and says who and where."""

from __future__ import annotations

import errno
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from cdc.cli.logs import LOG_FORMAT, errors_logged, log_to_stderr
from cdc.cli.main import main
from cdc.model.errors import OperatorError
from cdc.telemetry.json_log import JsonFormatter, Place


def _line(message: object, *args: object, place: Place | None = None, **more: Any) -> dict[str, Any]:
    record = logging.LogRecord("cdc", logging.WARNING, "f", 1, message, args, None, **more)
    text = JsonFormatter(place or Place(connector="shop")).format(record)
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_line_says_when_who_and_where() -> None:
    place = Place(connector="shop")
    assert "position" not in _line("x", place=place)
    place.stands_at({"lsn": "0/16B3748"})
    found = _line("slot %s: %d MB", "s", 5, place=place)
    assert found["message"] == "slot s: 5 MB"
    assert found["position"] == {"lsn": "0/16B3748"}
    assert (found["connector"], found["level"], found["logger"]) == ("shop", "warning", "cdc")
    assert found["time"].endswith("+00:00")


@pytest.mark.parametrize("message", ['"quoted"\n{"level":"error"}\n', "☂ \x00\x1b[31m", "lone \ud800", "x" * 100_000])
def test_any_text_is_one_line(message: str) -> None:
    assert _line(message)["message"] == message


def test_an_exception_is_in_its_line() -> None:
    try:
        raise ValueError("no")
    except ValueError:
        record = logging.LogRecord("cdc", logging.ERROR, "f", 1, "failed", (), sys.exc_info())
    found = json.loads(JsonFormatter(Place()).format(record))
    assert found["exception"].endswith("ValueError: no")


@click.command()
@LOG_FORMAT
def command(*, log_format: str) -> None:
    with errors_logged(log_format, Place(connector="c")):
        assert log_to_stderr(log_format, Place()).formatter is not None
        raise OperatorError("slot lost", hint="cdc check")


@pytest.mark.parametrize(
    ("words", "environment", "as_json"),
    [
        ([], {}, False),
        (["--log-format", "json"], {}, True),
        ([], {"CDC_LOG_FORMAT": "json"}, True),
        (["--log-format", "text"], {"CDC_LOG_FORMAT": "json"}, False),
    ],
)
def test_an_error_in_the_format_that_was_asked_for(
    words: list[str], environment: dict[str, str], as_json: bool
) -> None:
    done = CliRunner().invoke(command, words, env=environment)
    if not as_json:
        assert isinstance(done.exception, OperatorError), "main shows it"
        return
    assert done.exit_code == 1
    found = json.loads(done.stderr)
    assert (found["message"], found["hint"], found["connector"]) == ("slot lost", "cdc check", "c")


@pytest.mark.parametrize(
    ("raised", "code", "told"),
    [
        (KeyboardInterrupt(), 130, {"level": "warning", "message": "interrupted"}),
        (click.UsageError("two files name c"), 2, {"level": "error", "message": "two files name c"}),
        (OSError(errno.ENOSPC, "No space left on device", "/tmp/x"), 1, {"hint": "df -h shows which disk is full"}),
        (KeyError("k"), 1, {"kind": "KeyError", "message": "this must not happen: KeyError"}),
    ],
    ids=["interrupted", "wrong use", "full", "bug"],
)
def test_whatever_ends_a_command_is_one_object(raised: BaseException, code: int, told: dict[str, Any]) -> None:
    """A second Ctrl-C, a full disk and a bug were lines of text, and a traceback, among the objects."""

    @click.command()
    def fails() -> None:
        with errors_logged("json", Place(connector="c")):
            raise raised

    done = CliRunner().invoke(fails)
    assert done.exit_code == code
    found = json.loads(done.stderr)
    assert found == {**found, **told, "connector": "c"}
    assert ("Traceback" in found.get("exception", "")) == isinstance(raised, KeyError)


@pytest.mark.parametrize(
    ("words", "environment", "as_json"),
    [
        (["run", "--log-format", "json", "--bogus"], "text", True),
        (["apply", "--log-format=json"], "text", True),
        (["run"], "json", True),
        (["run", "--log-format=text"], "json", False),
        (["status"], "json", False),
    ],
)
def test_a_wrong_command_line_is_told_in_the_logs_format(
    words: list[str],
    environment: str,
    as_json: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is found before the command begins, and was lines of text."""
    monkeypatch.setenv("CDC_LOG_FORMAT", environment)
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("{" if as_json else "Usage:")
    assert not as_json or json.loads(told)["level"] == "error"


def test_the_end_of_a_thread_is_one_object() -> None:
    code = (
        "import threading; from cdc.cli.logs import log_to_stderr; from cdc.telemetry.json_log import Place\n"
        "log_to_stderr('json', Place(connector='c'))\nimport warnings; warnings.warn('old')\n"
        "t = threading.Thread(target=lambda: 1 // 0); t.start(); t.join()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    warned, ended = (json.loads(text) for text in done.stderr.splitlines())
    assert "UserWarning: old" in warned["message"]
    assert ended["message"] == "a thread has ended: ZeroDivisionError"
    assert ended["exception"].endswith("ZeroDivisionError: integer division or modulo by zero")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_line_names_the_file_that_the_command_was_given(log_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning's command can be pasted, as that of an error can; another handler's record is as it was."""
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    shown: list[str] = []
    record = logging.LogRecord("cdc", logging.WARNING, "f", 1, "left out; cdc check %s", ("CONNECTOR.yaml",), None)

    @click.command()
    @click.argument("file", metavar="CONNECTOR.yaml", type=click.Path(path_type=Path))
    def reads(file: Path) -> None:
        shown.append(log_to_stderr(log_format, Place()).format(record))

    assert CliRunner().invoke(reads, ["our shop.yaml"]).exception is None
    assert "left out; cdc check 'our shop.yaml'" in shown[0]
    assert record.getMessage() == "left out; cdc check CONNECTOR.yaml"


@pytest.mark.parametrize("verbose", [False, True])
def test_lines_of_libraries_are_left_out_unless_they_warn(verbose: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An HTTP client, by whatever name it is installed, names each URL at INFO: no line of a connector's log."""
    set_up: list[Any] = []
    monkeypatch.setattr(logging, "basicConfig", lambda **given: set_up.append(given))
    made = log_to_stderr("text", Place(), verbose=verbose)
    assert set_up == [{"level": logging.DEBUG if verbose else logging.INFO, "handlers": [made]}]

    def heard(name: str, level: int) -> bool:
        return bool(made.filter(logging.LogRecord(name, level, "f", 1, "HTTP Request: GET", (), None)))

    assert [heard(name, logging.INFO) for name in ("cdc", "cdc.apply", "httpx", "httpx2", "cdcx.y")] == [
        True, True, False, False, False,
    ]  # fmt: skip
    assert heard("httpx2", logging.WARNING)


@pytest.mark.parametrize(("words", "environment"), [(["--log-format", "xml"], {}), ([], {"CDC_LOG_FORMAT": "xml"})])
def test_another_format_is_refused(words: list[str], environment: dict[str, str]) -> None:
    done = CliRunner().invoke(command, words, env=environment)
    assert done.exit_code == 2
    assert "'xml' is not one of 'text', 'json'" in done.stderr
