"""The monitor judges what is seen from outside, shows every failure as itself, and answers only who is meant."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from cdc.capture.control.signals import Command
from cdc.cli.inspecting.monitor import _watched
from cdc.config.config import ConnectorConfig, load_connector
from cdc.config.kafka_config import KafkaConfig
from cdc.config.metrics_config import MetricsConfig
from cdc.config.source_config import SourceConfig
from cdc.model.errors import ConfigError, OperatorError, RetryableError
from cdc.model.state import Phase, State
from cdc.monitor import process as processes
from cdc.monitor import server as page_server
from cdc.monitor.burrow import Status
from cdc.monitor.commands import PageCommands, Refused, read_token
from cdc.monitor.consumers import Consumers, GroupStanding, TopicStanding
from cdc.monitor.figures import MOST_PAIRS, MonitorFigures, tell_consumers
from cdc.monitor.judged import STATES, Problem, Rate, level_of, log_left, problems_of, state_of
from cdc.monitor.looks import Answer, FileNow, Look
from cdc.monitor.monitor import Monitor
from cdc.monitor.server import POLICY, PageServer
from cdc.monitor.status import asked_for, at_work, status_of
from cdc.monitor.watched import Watched, WatchedConnector
from cdc.telemetry.figures import Figures
from cdc.telemetry.metrics import SEEN
from sinks.topics.records.positions import Standing

YAML = """\
name: {0}
source: {{type: postgres, url: 'postgresql://u:{1}@h/d', tables: [public.t]}}
sink: {{bootstrap_servers: 'h:1'}}
"""
TOKEN = "0123456789abcdef-token"
CONFIG = ConnectorConfig(
    name="shop",
    source=SourceConfig(type="postgres", url="postgresql://h/d", tables=("public.t",)),
    sink=KafkaConfig(bootstrap_servers="h:1", topic_prefix="shop"),
)


def _status(**more: Any) -> dict[str, Any]:
    return {"phase": "stream", "paused_at": None, "last_error": None, "slot": None, "dead_letters": 0, **more}


@pytest.mark.parametrize(
    ("status", "process", "server", "at_work", "state"),
    [
        (_status(), None, True, True, "streaming"),
        (_status(phase="snapshot"), None, True, True, "snapshot"),
        (_status(phase="creating"), None, True, True, "creating"),
        (_status(paused_at="t"), None, True, True, "paused"),
        (_status(), None, True, False, "stopped"),
        (_status(last_error={"message": "m"}), None, True, False, "failed"),
        (_status(phase="new"), None, True, False, "new"),
        (_status(), None, False, None, "unreachable"),
        (_status(), None, True, None, "unknown"),
        (None, None, True, True, "unknown"),
        (_status(), "retrying", True, False, "retrying"),
        (_status(), "failed", False, None, "failed"),
        (_status(), "starting", True, False, "starting"),
        (_status(), "standby", True, True, "streaming"),
        (None, "standby", True, True, "unknown"),
    ],
)
def test_states(
    status: dict[str, Any] | None, process: str | None, server: bool, at_work: bool | None, state: str
) -> None:
    assert state_of(status, process, server=server, at_work=at_work) == state
    assert state in STATES


def test_levels() -> None:
    assert level_of("streaming", []) == "ok"
    assert level_of("streaming", [Problem("warn", "x"), Problem("bad", "y")]) == "bad"
    assert level_of("paused", []) == "warn"
    assert level_of("something of a later release", []) == "bad"


def _slot(**more: Any) -> dict[str, Any]:
    return {
        "name": "cdc_s",
        "wal_status": "reserved",
        "safe_wal_size_bytes": None,
        "retained_wal_bytes": 0,
        "active": True,
        **more,
    }


@pytest.mark.parametrize(
    ("slot", "binlog", "growth", "left_s", "says"),
    [
        (_slot(), None, 5.0, None, "until the disk is full"),
        (
            _slot(safe_wal_size_bytes=36_000_000),
            None,
            10_000.0,
            3600.0,
            "1 h 0 min at the present rate, 36 MB are left",
        ),
        (_slot(safe_wal_size_bytes=36_000_000), None, 0.0, None, "does not grow at present"),
        (_slot(safe_wal_size_bytes=36_000_000), None, None, None, "is being watched"),
        (_slot(safe_wal_size_bytes=-5), None, 10.0, 0.0, "0 MB are left"),
        (_slot(wal_status="lost"), None, 10.0, 0.0, "the slot is lost"),
        (None, {"kept_for_seconds": 7200}, None, 7140.0, "1 h 59 min, by binlog_expire_logs_seconds"),
        (None, {"kept_for_seconds": None}, None, None, "kept for ever"),
        (None, None, None, None, "not known"),
    ],
)
def test_how_long_the_log_is_kept(
    slot: Any, binlog: Any, growth: float | None, left_s: float | None, says: str
) -> None:
    found, words = log_left(slot, binlog, growth=growth, lag_s=60.0)
    assert found == left_s
    assert says in words


def test_problems_come_with_a_command() -> None:
    lost = problems_of(_status(slot=_slot(wal_status="lost")), state="stopped", left_s=0.0)
    assert (lost[0].level, lost[0].hint) == ("bad", "cdc snapshot start CONNECTOR.yaml --after-gap")
    soon = problems_of(_status(slot=_slot()), state="paused", left_s=3600.0)
    assert [(of.level, of.hint) for of in soon] == [("bad", "cdc resume CONNECTOR.yaml")]
    error = {"message": "slot lost: x", "hint": "cdc snapshot start --after-gap", "at_ms": 1}
    failed = problems_of(_status(last_error=error, dead_letters=2), state="failed", left_s=None)
    assert [(of.level, of.says) for of in failed] == [
        ("bad", "slot lost: x"), ("warn", "nobody follows its log"), ("warn", "2 events are dead letters"),
    ]  # fmt: skip
    idle = problems_of(_status(slot=_slot(retained_wal_bytes=5_000_000)), state="stopped", left_s=None)
    assert "keeps 5 MB of log" in idle[0].says
    assert problems_of(_status(), state="streaming", left_s=None) == []


@pytest.mark.parametrize(
    ("server", "age_s", "works"),
    [
        ({"reading": None, "changes": {}}, 5, True),  # triggers, etcd: shown as stopped while they ran
        ({"reading": None, "changes": {}}, 60, False),
        ({"reading": None, "binlog": {}}, 5, True),
        ({"reading": True, "binlog": {}}, 60, True),
        ({"reading": False, "binlog": {}}, 5, False),
        ({"reading": False, "slot": None}, 5, False),
        ({"reading": None, "slot": _slot()}, 60, True),
        ({"unreachable": "why"}, 5, None),
        ({}, 5, None),
    ],
)
def test_who_is_at_work(server: dict[str, Any], age_s: int, works: bool | None) -> None:
    """As its server tells; where that does not, by the age of the last commit."""
    assert at_work(CONFIG, server, age_s) is works
    state = State(connector="shop", identity={}, phase=Phase.STREAM, epoch=1)
    found = status_of(CONFIG, Standing(state, 0, None), server, age_s)
    assert found["running"] is bool(works)


def test_what_is_asked_of_one_that_is_down_is_told() -> None:
    """Whatever anybody may have written into the signal topic: no time and no key of it ends the command."""
    gone = b'{"type":"pause-connector","data":{},"by":"ada@desk","asked_ms":99999999999999999}'
    rows = Command(tables=("public.t",), keys=((b"7",),), by="ada@desk", asked_ms=0).to_bytes("2")
    found = asked_for([(b"1", gone), (b"2", rows), (b"3", b"junk"), (b"reread-1", rows)])
    ada: dict[str, Any] = {"by": "ada@desk"}
    assert found == [
        {"action": "pause", "asked_at": None, "about": {}, **ada},
        {
            "action": "read rows",
            "asked_at": "1970-01-01T00:00:00.000+00:00",
            "about": {"tables": ["public.t"], "keys": 1},
            **ada,
        },
    ]


def test_one_that_has_never_run_is_no_fault(tmp_path: Path) -> None:
    """`CdcNobodyFollows` was raised for a connector for which its server keeps nothing yet."""
    file = tmp_path / "s.yaml"
    file.write_text(YAML.format("shop", "p"))
    watched = WatchedConnector(file, load_connector(file))
    now_ms = time.time_ns() // 10**6
    state = State(connector="shop", identity={}, phase=Phase.STREAM, epoch=1)
    watched._server = SimpleNamespace(answer=lambda: Answer({"reading": False, "slot": None}, 1, None))  # type: ignore[assignment]
    for found, works in ((None, None), (Standing(state, now_ms, None), False)):
        watched._kafka = SimpleNamespace(answer=lambda found=found: Answer((found, now_ms, None), 1, None))  # type: ignore[assignment,misc]
        assert watched.at_work() is works


def test_what_a_server_never_keeps_is_not_missed() -> None:
    """A binlog that is kept for two hours was a fault for ever."""
    for left_s, levels in ((7000.0, []), (3000.0, ["bad"])):
        found = problems_of(_status(), state="streaming", left_s=left_s, kept_s=7200.0)
        assert [of.level for of in found] == levels


def test_a_rate_begins_again_with_its_process() -> None:
    rate = Rate()
    for at, value in ((0.0, 0.0), (2.0, 20.0)):
        rate.saw(value, at)
    assert rate.a_second() is None, "not watched for long enough"
    rate.saw(50.0, 5.0)
    assert rate.a_second() == 10.0
    rate.saw(0.0, 6.0)
    assert rate.a_second() is None
    for at in range(100, 300, 10):
        rate.saw(at * 2.0, float(at))
    assert rate.a_second() == 2.0


def test_a_look_keeps_its_last_answer_and_says_why_there_is_none_now() -> None:
    answers: list[Any] = [1, OperatorError("no", hint="do"), ZeroDivisionError("secret"), 2]

    def ask() -> int:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return int(found)

    look = Look("x", ask, every_s=60)
    assert (look.answer().value, look.answer().failure) == (None, None)
    look.look()
    assert (look.answer().value, look.answer().failure) == (1, None)
    look.look()
    first = look.answer().failure
    assert first is not None
    assert (look.answer().value, first.message, first.hint) == (1, "no", "do")
    look.look()
    second = look.answer().failure
    assert second is not None
    assert (second.message, second.since_ms) == ("ZeroDivisionError", first.since_ms)
    look.look()
    assert (look.answer().value, look.answer().failure) == (2, None)


def test_a_look_that_hangs_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.monitor.looks._ANSWERS_WITHIN_S", 0.0)
    over, begun = threading.Event(), threading.Event()

    def ask() -> None:
        begun.set()
        over.wait(30)

    look = Look("x", ask, every_s=60)
    look.start()
    begun.wait(30)
    time.sleep(0.01)
    failure = look.answer().failure
    over.set()
    look.stop()
    assert failure is not None
    assert failure.message == "no answer yet"


def test_a_file_that_says_something_else_by_now_is_asked_by(tmp_path: Path) -> None:
    """After a changed password the page, and the metrics, had the server as away until the monitor was restarted."""
    file = tmp_path / "c.yaml"
    file.write_text(YAML.format("shop", "old"))
    now = FileNow(file, load_connector(file), load_connector)
    right, asked = "old", list[str]()

    def question(config: ConnectorConfig) -> str:
        asked.append(config.source.url)
        if f":{right}@" not in config.source.url:
            raise OperatorError("refused")
        return right

    assert now.ask(question) == "old"
    right = "new"
    for text in (YAML.format("shop", "old"), "{", YAML.format("other", "new")):
        file.write_text(text)
        with pytest.raises(OperatorError):
            now.ask(question)
    assert {url.partition("@")[0] for url in asked} == {"postgresql://u:old"}
    file.write_text(YAML.format("shop", "new"))
    assert now.ask(question) == "new"
    assert now.config.source.url.startswith("postgresql://u:new@")


def test_the_metrics_of_another_process_are_not_taken() -> None:
    text = (
        'cdc_connector_state{connector="shop",state="streaming"} 1.0\n'
        'cdc_connector_state{connector="shop",state="failed"} 0.0\n'
        'cdc_source_events_total{connector="shop",table="a",op="c"} 5.0\n'
        'cdc_source_events_total{connector="shop",table="a",op="u"} 2.0\n'
    )
    assert processes.parse(text, label="connector", name="shop") == processes.Process("streaming", 7.0)
    assert processes.parse(text, label="connector", name="other") == processes.Process(None, 0.0)
    with pytest.raises(RetryableError, match="no process answers"):
        processes.ask(MetricsConfig(listen="127.0.0.1:1"), label="connector", name="shop")


# --- The server -------------------------------------------------------------------------------------------------------


class Fake:
    """Something that is watched, or cannot be."""

    kind = "connectors"
    called = "CONNECTOR.yaml"

    def __init__(self, name: str, entry: dict[str, Any] | Exception) -> None:
        self.name, self.file, self._entry = name, f"{name} of us.yaml", entry

    def looks(self) -> Sequence[Look[Any]]:
        return ()

    def entry(self) -> dict[str, Any]:
        if isinstance(self._entry, Exception):
            raise self._entry
        return {"name": self.name, "level": "ok", "state": "streaming", **self._entry}

    def series(self) -> dict[str, list[float | None]]:
        return {"at": [1.0], "lag_seconds": [None]}


CONFIG = ConnectorConfig(
    name="shop",
    source=SourceConfig(type="postgres", url="postgresql://h/d", tables=("public.t",)),
    sink=KafkaConfig(bootstrap_servers="k:1", topic_prefix="shop"),
)


@pytest.fixture(params=[False, True], ids=["read-only", "commands"])
def server(request: pytest.FixtureRequest) -> Iterator[PageServer]:
    watched: list[Watched] = [Fake("a", {"lag_seconds": 1.5}), Fake("b", ValueError("secret")), Fake("<i>c", {})]
    commands = PageCommands([WatchedConnector(Path("shop.yaml"), CONFIG)], TOKEN) if request.param else None
    monitor = Monitor(watched, [{"file": "x.yaml", "message": "m", "hint": None}], commands=request.param)
    made = PageServer(("127.0.0.1", 0), monitor, MonitorFigures(watched).registry, commands)
    with made, monitor:
        yield made


def _ask(
    server: PageServer, path: str, method: str = "GET", body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()


def test_one_that_cannot_be_shown_hides_no_other(server: PageServer) -> None:
    status, headers, body = _ask(server, "/api/state")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    state = orjson.loads(body)
    assert [(of["name"], of["level"]) for of in state["connectors"]] == [("a", "ok"), ("b", "bad"), ("<i>c", "ok")]
    assert state["files"] == [{"file": "x.yaml", "message": "m", "hint": None}]
    assert b"secret" not in body
    assert orjson.loads(_ask(server, "/api/series")[2])["connectors"]["a"]["lag_seconds"] == [None]


def test_a_command_on_the_page_has_the_file_that_is_watched() -> None:
    """Also in what the connector itself has noted of its last error, which knows no file."""
    problems = [{"level": "bad", "says": "x", "hint": "cdc check CONNECTOR.yaml"}]
    noted = {"message": "m", "hint": "cdc run CONNECTOR.yaml --wait"}
    state = json.loads(Monitor([Fake("a", {"problems": problems, "last_error": noted})], commands=False).state())
    (shown,) = state["connectors"]
    assert shown["problems"][0]["hint"] == "cdc check 'a of us.yaml'"
    assert shown["last_error"]["hint"] == "cdc run 'a of us.yaml' --wait"


def test_names_that_are_no_utf_8_hide_no_other() -> None:
    """A file's name may be any bytes: the command ended with a traceback, or the page stood still from then on."""
    watched: list[Watched] = [Fake("a", {}), Fake("b", {"file": "caf\udce9.yaml"})]
    monitor = Monitor(watched, [{"file": "x\udcff.yaml", "message": "m", "hint": None}], commands=False)
    state = json.loads(monitor.state())
    assert [of["name"] for of in state["connectors"]] == ["a", "b"]
    assert state["connectors"][1]["file"] == "caf\udce9.yaml"
    assert state["files"][0]["file"] == "x\udcff.yaml"


def test_figures_of_one_that_cannot_be_judged_hide_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    connectors = [WatchedConnector(Path("a"), replace(CONFIG, name=name)) for name in "ab"]

    def at_work(of: WatchedConnector) -> bool:
        if of.name == "a":
            raise ValueError("odd")
        return True

    monkeypatch.setattr(WatchedConnector, "at_work", at_work)
    samples = [sample for family in MonitorFigures(connectors).collect() for sample in family.samples]
    running = {of.labels["connector"]: of.value for of in samples if of.name == "cdc_monitor_connector_running"}
    assert running == {"b": 1.0}


def test_every_answer_says_that_nothing_foreign_may_be_fetched(server: PageServer) -> None:
    for path in ("/", "/page.js", "/page.css", "/uplot.js", "/uplot.css", "/api/state", "/metrics", "/livez", "/none"):
        status, headers, body = _ask(server, path)
        assert status == (404 if path == "/none" else 200)
        assert headers["Content-Security-Policy"] == POLICY
        assert headers["X-Content-Type-Options"] == "nosniff"
        if path in ("/", "/page.js", "/page.css"):
            assert b"http://" not in body.replace(b"http://www.w3.org", b"")
            assert b"https://" not in body
            assert not re.search(rb"""(src=|href=|fetch\()["']/""", body), "a proxy may have the page below a path"
    assert _ask(server, "/", "HEAD")[2] == b""
    assert _ask(server, "/", "PUT")[0] == 405
    assert "'unsafe" not in POLICY


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:9", 200), ("localhost", 200), ("[::1]:9", 200), ("evil.example", 421), ("10.0.0.1", 421), ("", 421)],
)
def test_on_this_machine_another_name_is_not_answered(server: PageServer, host: str, status: int) -> None:
    """A site whose name leads to 127.0.0.1 would else read the page with the browser of who sits here."""
    assert _ask(server, "/api/state", Host=host)[0] == status
    assert _ask(server, "/api/command", "POST", b"{}", Host=host)[0] in (status, 401, 403)


def test_metrics_are_one_family_each(server: PageServer) -> None:
    for accept, parse in (("", parse_text), ("application/openmetrics-text", parse_openmetrics)):
        families = [family.name for family in parse(_ask(server, "/metrics", Accept=accept)[2].decode())]
        assert len(families) == len(set(families))


def test_commands_are_for_who_has_the_token(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_server, "_WRONG_TOKEN_S", 0.0)
    asked = orjson.dumps({"connector": "shop", "command": "pause"})
    json = {"Content_Type": "application/json"}
    if not orjson.loads(_ask(server, "/api/state")[2])["commands"]:
        assert _ask(server, "/api/command", "POST", asked, Authorization=f"Bearer {TOKEN}", **json)[0] == 403
        return
    for wrong in ("", "Bearer ", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer \xe9"):
        assert _ask(server, "/api/command", "POST", asked, Authorization=wrong, **json)[0] == 401
    of_proxy = {"Authorization": "Basic YTpi"}
    assert _ask(server, "/api/command", "POST", asked, **of_proxy, **json, **{"X-CDC-Token": f"{TOKEN}x"})[0] == 401
    assert _ask(server, "/api/command", "POST", b"{}", **of_proxy, **json, **{"X-CDC-Token": TOKEN})[0] == 400
    right = {"Authorization": f"Bearer {TOKEN}"}
    assert _ask(server, "/api/command", "POST", asked, Content_Type="text/plain", **right)[0] == 415
    assert _ask(server, "/api/none", "POST", asked, **right, **json)[0] == 404
    assert _ask(server, "/api/command", "POST", b"x" * 70_000, **right, **json)[0] == 413
    for body, status in (
        (b"[]", 400),
        (b"\xff", 400),
        (orjson.dumps({"connector": "shop", "command": "drop"}), 400),
        (orjson.dumps({"connector": "shop", "command": "snapshot", "tables": [1]}), 400),
        (orjson.dumps({"connector": "none", "command": "pause"}), 404),
    ):
        found, _, said = _ask(server, "/api/command", "POST", body, **right, **json)
        assert (found, "error" in orjson.loads(said)) == (status, True)


def test_a_token_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    monkeypatch.delenv("CDC_MONITOR_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="needs a token"):
        read_token(None)
    for text in ("s3cret", "with blanks in it is none", "é" * 20):
        file.write_text(text)
        with pytest.raises(ConfigError, match="too short") as refused:
            read_token(file)
        assert text not in str(refused.value)
    file.write_text(f"{TOKEN}\n")
    assert read_token(file) == TOKEN
    monkeypatch.setenv("CDC_MONITOR_TOKEN", TOKEN)
    assert read_token(None) == TOKEN
    with pytest.raises(ConfigError, match="cannot be read"):
        read_token(tmp_path / "none")


def test_a_refusal_has_a_status() -> None:
    with pytest.raises(Refused) as refused:
        PageCommands([], TOKEN).do(b"{}", by="x")
    assert refused.value.status == 400


# --- Figures ----------------------------------------------------------------------------------------------------------


def test_groups_and_topics_are_bounded() -> None:
    """All beyond the bound are one: their records are added up, the worst of the rest is told."""
    groups = [
        GroupStanding(
            group=f"g{n}", state="Stable", records=1, exact=True, seconds=float(n), status=Status.OK,
            topics=[TopicStanding(topic="t", records=1, exact=True, seconds=float(n),
                                  status=Status.STOPPED if n == MOST_PAIRS + 7 else Status.OK, partitions=())],
        )
        for n in range(MOST_PAIRS + 10)
    ]  # fmt: skip
    figures = Figures(SEEN, {"connector": "shop"})
    tell_consumers(figures, Consumers(connector="shop", groups=groups, unreadable={}, no_commits=None))
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in figures.collect()
        for sample in family.samples
    }
    assert samples["cdc_consumer_lag_records", "shop", "other", "other"] == 10
    assert samples["cdc_consumer_lag_seconds", "shop", "other", "other"] == MOST_PAIRS + 9
    assert samples["cdc_consumer_status", "shop", "other", "other", "stopped"] == 1
    assert samples["cdc_consumer_status", "shop", "other", "other", "ok"] == 0
    assert samples["cdc_consumer_status", "shop", "g1", "t", "ok"] == 1
    assert sum(name == "cdc_consumer_lag_records" for name, *_ in samples) == MOST_PAIRS + 1


def test_two_files_of_one_connector_are_shown_as_one(tmp_path: Path) -> None:
    """The command ended, and with it the page of all others; the first file is watched, the second one is named."""
    files = [tmp_path / f"{name}.yaml" for name in "abcd"]
    for file, name in zip(files, ("shop", "shop", "other", ""), strict=True):
        file.write_text(YAML.format(name, "p"))
    watched, refused = _watched((*files, files[0]))
    assert [(one.name, one.file) for one in watched] == [("shop", str(files[0])), ("other", str(files[2]))]
    told = [(one["file"], one["level"]) for one in refused]
    assert told == [(str(files[1]), "warn"), (str(files[3]), "bad"), (str(files[0]), "warn")]
    assert f"two files are of shop: {files[0]}, by which it is shown, and {files[1]}" == refused[0]["message"]
    assert "--listen" in refused[0]["hint"]
