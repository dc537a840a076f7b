"""What a member shows: itself, its fleet, and its connectors' own metrics, of which none can hold it up."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from cdc.fleet.entry import Entry, read_entries
from cdc.fleet.seams import Assigned, Away, GroupMember, Lost, Revoked
from cdc.fleet.standing import Status
from cdc.model.errors import RetryableError
from cdc.model.meter import RunState
from cdc.telemetry import fleet_meter
from cdc.telemetry.connector_meter import ConnectorMeter
from cdc.telemetry.fleet_meter import FleetMeter
from cdc.telemetry.merged import merged
from cdc.telemetry.server import MetricsServer
from tests.unit.test_metrics_server import CONFIG

YAML = """\
name: {0}
source: {{type: postgres, url: 'postgresql://h/d', tables: [public.t]}}
sink: {{bootstrap_servers: 'h:1'}}
"""


@pytest.fixture
def meter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FleetMeter:
    monkeypatch.setattr(fleet_meter, "_KEPT_S", 0.0)
    monkeypatch.setattr(fleet_meter, "_ANSWER_S", 0.5)
    return FleetMeter("production", "m1", tmp_path)


@contextmanager
def shown(meter: FleetMeter) -> Iterator[MetricsServer]:
    with MetricsServer(("127.0.0.1", 0), meter.figures.registry, meter, others=meter.children) as server:
        yield server


def ask(server: MetricsServer, path: str, accept: str = "") -> tuple[int, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        connection.request("GET", path, headers={"Accept": accept})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def told(meter: FleetMeter, name: str) -> dict[str, float]:
    """Values by the labels that are not constant."""
    found = {}
    for family in meter.figures.registry.collect():
        for sample in family.samples:
            if sample.name == name:
                assert (sample.labels["fleet"], sample.labels["member"]) == ("production", "m1")
                rest = [value for key, value in sample.labels.items() if key not in ("fleet", "member")]
                found[",".join(rest)] = sample.value
    return found


def test_a_member_shows_its_connectors_metrics_beside_its_own(meter: FleetMeter, tmp_path: Path) -> None:
    """One process that is gone, frozen or has no answer hides no other, and makes nobody wait for long."""
    meter.has(frozenset({"shop", "billing", "frozen", "gone", "broken"}))
    children = [ConnectorMeter(replace(CONFIG, name=name)) for name in ("shop", "billing")]
    for child, state in zip(children, (RunState.STREAMING, RunState.RETRYING), strict=True):
        child.becomes(state)
    with (
        MetricsServer(tmp_path / "shop.sock", children[0].figures.registry, children[0]),
        MetricsServer(tmp_path / "billing.sock", children[1].figures.registry, children[1]),
        socket.socket(socket.AF_UNIX) as frozen,
        socket.socket(socket.AF_UNIX) as broken,
        shown(meter) as server,
    ):
        frozen.bind(str(tmp_path / "frozen.sock"))
        frozen.listen()
        broken.bind(str(tmp_path / "broken.sock"))
        for accept, parse in (("", parse_text), ("application/openmetrics-text; version=1.0.0", parse_openmetrics)):
            status, text = ask(server, "/metrics", accept)
            assert status == 200
            families = [family for family in parse(text)]  # noqa: C416 - the parser refuses a family that comes twice
            samples = {
                (sample.name, sample.labels.get("connector"), sample.labels.get("state")): sample.value
                for family in families
                for sample in family.samples
            }
            assert samples["cdc_connector_state", "shop", "streaming"] == 1
            assert samples["cdc_connector_state", "billing", "retrying"] == 1
            assert ("cdc_build_info", None, None) in samples
            assert ("cdc_build_info", "shop", None) in samples
            up = {name: value for (metric, name, _), value in samples.items() if metric == "cdc_fleet_connector_up"}
            assert up == {"shop": 1, "billing": 1, "frozen": 0, "gone": 0, "broken": 0}
            assert len({family.name for family in families}) == len(families)
            assert text.count("# HELP cdc_build_info ") == 1
            assert text.count("# EOF") == bool(accept)
            assert text.endswith("\n")


def test_what_the_fleet_is_like(meter: FleetMeter) -> None:
    """By state, as `cdc fleet status` has it; until the coordinator has answered nothing is said of it."""
    assert told(meter, "cdc_fleet_connectors") == told(meter, "cdc_fleet_members") == {}
    entries = read_entries(
        {
            name: Entry(name=name, prefix=name, place=place, added_ms=1, yaml=YAML.format(name)).to_bytes()
            for place, name in enumerate(("a", "b", "c", "d"))
        }
        | {"wrong": b"{"}
    )
    meter.sees(
        entries,
        {
            "a": Status(member="m1", state="streaming", since_ms=5),
            "b": Status(member="m1", state="stopped", since_ms=5),
            "c": Status(member="m2", state="streaming", since_ms=5),
        },
    )
    meter.answered([GroupMember("m1", "m1-1", "h", (0, 1, 2))])
    assert {state: count for state, count in told(meter, "cdc_fleet_connectors").items() if count} == {
        "streaming": 1, "stopped": 1, "waiting": 2, "failed": 1,
    }  # fmt: skip
    assert told(meter, "cdc_fleet_connectors").keys() >= {"waiting", "fenced", "snapshot", "paused", "retrying"}
    before = told(meter, "cdc_fleet_coordinator_timestamp_seconds")
    meter.answered(None)
    assert told(meter, "cdc_fleet_coordinator_timestamp_seconds") == before
    assert told(meter, "cdc_fleet_members") == {"": 1}


def test_what_a_member_does_is_counted_and_judged(meter: FleetMeter) -> None:
    """It is started and alive while it waits for brokers, and ready while it is in the group."""
    with shown(meter) as server:
        assert [ask(server, path)[0] for path in ("/startupz", "/livez", "/readyz")] == [200, 200, 503]
        for news in (Assigned((0, 1), 1.0), Revoked((0,), Event()), Away(RetryableError("away"))):
            meter.hears(news)
        assert ask(server, "/readyz") == (200, "in the group\n")
        meter.hears(Lost())
        assert ask(server, "/readyz") == (503, "not in the group\n")
        assert ask(server, "/livez")[0] == 200, "brokers that are away end nothing"
    meter.starts(take_over=True)
    meter.starts(take_over=False)
    meter.ends("stopped")
    assert told(meter, "cdc_fleet_rebalances_total") == {"": 2}
    assert told(meter, "cdc_fleet_losses_total") == {"": 1}
    assert told(meter, "cdc_fleet_starts_total") == {"yes": 1, "no": 1}
    assert told(meter, "cdc_fleet_ends_total") == {"failed": 0, "fenced": 0, "stopped": 1}
    meter._pulse._moved_s -= 121
    assert not meter.live().ok
    meter.moves()
    assert meter.live().ok


def test_texts_of_two_releases_are_one() -> None:
    """The first help counts; metrics that one alone has come behind. A label may have any character."""
    first = b"# HELP a_total old\n# TYPE a_total counter\na_total 1.0\n# EOF\n"
    second = (
        b'# HELP a_total new\n# TYPE a_total counter\na_total{x="\r"} 2.0\n# HELP b new\n# TYPE b gauge\nb 3.0\n# EOF\n'
    )
    assert merged([first, second]).decode().split("\n") == [
        "# HELP a_total old", "# TYPE a_total counter", "a_total 1.0", 'a_total{x="\r"} 2.0',
        "# HELP b new", "# TYPE b gauge", "b 3.0", "# EOF", "",
    ]  # fmt: skip
