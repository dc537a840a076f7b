"""`cdc fleet add|remove|list|status`, over brokers in memory: nothing is half-made, and no error repeats a secret."""

from __future__ import annotations

import json
import re
import shlex
import time
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

import cdc.cli.running.fleet
from cdc.cli.running.fleet import fleet
from cdc.config import registry
from cdc.fleet.entry import read_entries
from cdc.fleet.fleet_config import FleetConfig, load_fleet
from cdc.fleet.seams import GroupMember
from cdc.fleet.standing import Status
from cdc.model.errors import ConfigError, OperatorError
from cdc.testing.fleet import MemoryBrokers, MemoryFleet
from sinks.fleet.topic import FleetTopic
from sinks.topics.names import fleet_of, fleet_topic, log_topic, position_topic, schema_topic, signal_topic


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> MemoryBrokers:
    found = MemoryBrokers()
    monkeypatch.setattr(cdc.cli.running.fleet, "_open", lambda config: MemoryFleet(found, config.fleet))
    monkeypatch.setenv("CDC_FLEET", "production")
    monkeypatch.setenv("CDC_BOOTSTRAP_SERVERS", "h:1")
    return found


def file(folder: Path, name: str, *, url: str = "${URL}", sink: str = "") -> str:
    path = folder / f"{name}.yaml"
    path.write_text(
        f"name: {name}\nsource: {{type: postgres, url: '{url}', tables: [public.t]}}\n"
        f"sink: {{bootstrap_servers: 'h:1'{sink}}}\n"
    )
    return str(path)


def run(*words: str) -> Result:
    return CliRunner().invoke(fleet, words)


def refused(*words: str) -> ConfigError | OperatorError:
    error = run(*words).exception
    assert isinstance(error, (ConfigError, OperatorError)), error
    return error


def names(brokers: MemoryBrokers, fleet_name: str = "production") -> list[str]:
    return sorted(brokers.records.get(fleet_name, {}))


def test_entries_come_and_go(brokers: MemoryBrokers, tmp_path: Path) -> None:
    """Each has a place of its own; one that is free is taken again."""
    assert run("add", file(tmp_path, "a"), file(tmp_path, "b"), file(tmp_path, "c")).exit_code == 0
    assert brokers.places["production"] == 3
    brokers.records["production"]["status/b"] = Status(member="m", state="streaming", since_ms=1).to_bytes()
    assert run("remove", "b").exit_code == 0
    assert names(brokers) == ["connector/a", "connector/c"]
    assert run("add", file(tmp_path, "d"), file(tmp_path, "e")).exit_code == 0
    listed = json.loads(run("list", "--json").stdout)["connectors"]
    assert {name: one["place"] for name, one in listed.items()} == {"a": 0, "c": 2, "d": 1, "e": 3}
    assert brokers.places["production"] == 4
    before = listed["a"]
    assert run("add", "--replace", file(tmp_path, "a", url="${OTHER}")).exit_code == 0
    after = json.loads(run("list", "--json").stdout)["connectors"]["a"]
    assert after == {**before, "yaml": before["yaml"].replace("${URL}", "${OTHER}")}
    assert run("list").stdout.splitlines()[1].split()[:3] == ["a", "a", "0"]
    noted = [(act.action, connector) for _, connector, act in brokers.noted]
    added, more = [("fleet add", name) for name in "abc"], [("fleet add", name) for name in "dea"]
    assert noted == [*added, ("fleet remove", "b"), *more]
    assert {act.about["fleet"] for _, _, act in brokers.noted} == {"production"}


def test_two_that_add_at_once_keep_apart(
    brokers: MemoryBrokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have found the same place free: the one that was there first keeps it, each other one moves."""
    run("add", file(tmp_path, "a"), file(tmp_path, "b"))
    written, write = list[str](), MemoryFleet.write
    entry = json.loads(brokers.records["production"]["connector/b"])

    def racing(self: MemoryFleet, key: str, value: bytes | None) -> None:
        write(self, key, value)
        if key == "connector/c" and not written:
            for name, added_ms in (("x", 1), ("y", 2**60)):
                of = {
                    **entry,
                    "place": 2,
                    "added_ms": added_ms,
                    "yaml": entry["yaml"].replace("name: b", f"name: {name}"),
                }
                write(self, f"connector/{name}", json.dumps(of).encode())
        written.append(key)

    monkeypatch.setattr(MemoryFleet, "write", racing)
    monkeypatch.setattr("time.sleep", lambda _: None)
    assert run("add", file(tmp_path, "c")).exit_code == 0
    listed = json.loads(run("list", "--json").stdout)["connectors"]
    assert {name: one["place"] for name, one in listed.items()} == {"a": 0, "b": 1, "x": 2, "y": 2, "c": 3}
    assert brokers.places["production"] == 4
    assert written == ["connector/c", "connector/c"], "y is looked after by who has added it"


def test_a_restart_is_another_version_of_the_entry(brokers: MemoryBrokers, tmp_path: Path) -> None:
    """Of a file that is added again as it was, too. A release before knows nothing of it, and reads the rest."""
    shop = file(tmp_path, "a")
    run("add", shop, file(tmp_path, "b"))

    def digest() -> str:
        return read_entries({"a": brokers.records["production"]["connector/a"]}).good["a"].digest

    seen = [digest()]
    for words in (("restart", "a"), ("add", "--replace", shop), ("restart", "a", "b")):
        time.sleep(0.002)
        assert run(*words).exit_code == 0
        seen.append(digest())
    assert len(set(seen)) == len(seen)
    assert [act.action for _, connector, act in brokers.noted if connector == "a"] == [
        "fleet add", "fleet restart", "fleet add", "fleet restart",
    ]  # fmt: skip
    error = refused("restart", "a", "c")
    assert error.message == "fleet production has no connector c"
    assert digest() == seen[-1]
    brokers.records["production"]["connector/wrong"] = b"{"
    assert "is run by nobody" in refused("restart", "wrong").message
    stopped = Status(member="m", state="stopped", since_ms=1, error={"message": "gone", "hint": "cdc snapshot start"})
    brokers.records["production"]["status/a"] = stopped.to_bytes()
    brokers.groups["production"] = [GroupMember("m", "m-1", "h", (0, 1))]
    shown = run("status").stdout
    assert "hint: cdc snapshot start" in shown
    assert "then: cdc fleet restart a" in shown
    assert json.loads(run("status", "--json").stdout)["connectors"]["a"]["state"] == "stopped"


def test_what_may_be_right_is_added_by_who_says_so(brokers: MemoryBrokers, tmp_path: Path) -> None:
    """In another fleet, too; what cannot be right is not."""
    assert run("add", file(tmp_path, "my-shop")).exit_code == 0
    near = file(tmp_path, "myshop", url="${OTHER}")
    assert "has nearly the name of connector my-shop" in refused("add", near).message
    assert "of fleet production" in refused("add", "--fleet", "staging", near).message
    assert run("add", "--force", near).exit_code == 0
    same_slot = file(tmp_path, "my_shop")
    assert "source.slot cdc_my_shop is that of connector my-shop" in refused("add", "--force", same_slot).message
    assert names(brokers) == ["connector/my-shop", "connector/myshop"]


def test_nothing_is_half_made(brokers: MemoryBrokers, tmp_path: Path) -> None:
    """One wrong file among good ones, and each clash: exit code 2, and the topic is as it was."""
    good = file(tmp_path, "good")
    wrong = file(tmp_path, "wrong", url="postgresql://u:hunter2@h/d")
    error = refused("add", good, wrong)
    assert "source.url holds a secret that is written out" in error.message
    assert "hunter2" not in str(error)
    assert brokers.records == {}
    assert run("add", good).exit_code == 0
    CliRunner().invoke(fleet, ["add", "--fleet", "staging", file(tmp_path, "elsewhere")])
    assert names(brokers, "staging") == ["connector/elsewhere"]
    brokers.records["production"]["connector/broken"] = b"{"
    other = file(tmp_path, "other")
    before = names(brokers)
    for clashing, message in (
        (good, "connector good is there already"),
        (file(tmp_path, "new", sink=", topic_prefix: good"), "its topic prefix good is that of connector good"),
        (file(tmp_path, "elsewhere"), "connector elsewhere is there already, in fleet staging"),
        (file(tmp_path, "third", sink=", topic_prefix: elsewhere"), "is that of connector elsewhere of fleet staging"),
        (file(tmp_path, "broken"), "connector broken is there already, and is run by nobody"),
        (str(tmp_path / "nowhere.yaml"), "cannot be read"),
        (other, "connector other is there already"),
    ):
        error = refused("add", other, clashing)
        assert message in error.message
        assert error.exit_code == 2
        assert names(brokers) == before
    assert run("add", "--replace", file(tmp_path, "broken")).exit_code == 0


def test_what_is_not_there_is_named(brokers: MemoryBrokers, tmp_path: Path) -> None:
    for words in (("list",), ("status",), ("remove", "a")):
        error = refused(*words)
        assert (error.message, error.exit_code) == ("no fleet production", 1)
    run("add", file(tmp_path, "orders"))
    error = refused("remove", "orders", "order")
    assert (error.message, error.hint) == ("fleet production has no connector order", "did you mean orders?")
    assert error.exit_code == 2
    assert names(brokers) == ["connector/orders"]


def test_status_tells_of_each_connector(brokers: MemoryBrokers, tmp_path: Path) -> None:
    """Those that are wrong, too, and those that no member runs; with the hint of the last error."""
    run("add", file(tmp_path, "a"), file(tmp_path, "b"), file(tmp_path, "c"))
    records = brokers.records["production"]
    records["connector/wrong"] = records["connector/a"]
    error = {"at_ms": 1, "kind": "OperatorError", "message": "the slot is lost", "hint": "cdc check a.yaml"}
    records["status/a"] = Status(member="m1", state="failed", since_ms=0, error=error, again_ms=1000).to_bytes()
    records["status/b"] = Status(member="m1", state="streaming", since_ms=0).to_bytes()
    brokers.groups["production"] = [GroupMember("m1", "m1-1", "10.0.0.7", (0, 1))]
    found = json.loads(run("status", "--json").stdout)
    assert found["members"] == {"m1": {"host": "10.0.0.7", "places": [0, 1]}}
    assert found["connectors"]["a"] == {
        "state": "failed",
        "member": "m1",
        "place": 0,
        "last_error": error,
        "since_at": "1970-01-01T00:00:00.000+00:00",
        "again_at": "1970-01-01T00:00:01.000+00:00",
    }
    assert {name: one["state"] for name, one in found["connectors"].items()} == {
        "a": "failed",
        "b": "streaming",
        "c": "waiting",
        "wrong": "failed",
    }
    shown = run("status").stdout
    assert "fleet production: 4 connectors, members: m1 (2)" in shown
    assert "hint: cdc check a.yaml" in shown
    assert "entry wrong is the file of connector a" in shown


def test_what_a_connector_says_of_itself_steers_no_terminal(brokers: MemoryBrokers, tmp_path: Path) -> None:
    """Its last error names a table, whose name is whose who has made it."""
    run("add", file(tmp_path, "a"))
    name = "public.a\x1b[2J\nb  streaming"
    error = {"at_ms": 1, "kind": "OperatorError", "message": f"table {name}: no key", "hint": f"DROP TABLE {name}"}
    failed = Status(member="m1", state="failed", since_ms=0, error=error)
    brokers.records["production"]["status/a"] = failed.to_bytes()
    brokers.groups["production"] = [GroupMember("m1", "m1-1", "10.0.0.7", (0,))]
    lines = run("status").stdout.splitlines()
    assert len(lines) == 4
    assert lines[2].endswith("table public.a\\x1b[2J\\nb  streaming: no key")


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        (None, {}, "which fleet is not known"),
        (None, {"fleet": "f"}, "which brokers the fleet is on is not known"),
        (None, {"fleet": "F", "bootstrap_servers": "h:1"}, "is not a fleet's name"),
        ("fleet: f\nbootstrap_servers: h:1\noptions: {isolation.level: x}\n", {}, "isolation.level cannot be set"),
        ("fleet: f\nbootstrap_server: h:1\n", {}, "unknown key"),
    ],
)
def test_which_fleet_is_meant_must_be_said(
    text: str | None, given: dict[str, str], message: str, tmp_path: Path
) -> None:
    path = None
    if text is not None:
        path = tmp_path / "fleet.yaml"
        path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_fleet(path, fleet=given.get("fleet"), bootstrap_servers=given.get("bootstrap_servers"))


def test_options_count_more_than_the_file(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "fleet: f\nbootstrap.servers: h:1\nreplication_factor: 2\noptions: {sasl.password: '${P:-hunter2}'}\n"
    )
    found = load_fleet(path, fleet="g", bootstrap_servers=None)
    assert (found.fleet, found.bootstrap_servers, found.kafka().replication_factor) == ("g", "h:1", 2)
    assert "hunter2" not in repr(found)
    assert isinstance(registry.part("sinks.fleet.topic:open_fleet")(found), FleetTopic)
    assert FleetTopic(FleetConfig(fleet="f", bootstrap_servers="h:1")).topic() == "cdc-fleet-f"


def test_no_fleets_topic_is_a_connectors() -> None:
    for topic in (schema_topic("cdc-fleet-f"), position_topic("cdc-fleet-f", "c"), signal_topic("cdc-fleet-f", "c"),
                  log_topic("cdc-fleet-f", "c", "message"), "shop.public.orders"):  # fmt: skip
        assert fleet_of(topic) is None
    assert fleet_of(fleet_topic("a-b")) == "a-b"


def test_the_commands_of_the_page_work(brokers: MemoryBrokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/fleet.md, line by line; what it shows of `cdc fleet run` is tried on real servers by the soak."""
    page = (Path(__file__).parents[2] / "docs/fleet.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    commands = [words[2:] for words in lines if words[:2] == ["cdc", "fleet"]]
    assert [words[0] for words in commands] == ["add", "run", "status"]
    for name in ("shop", "billing"):
        file(tmp_path, name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cdc.cli.running.fleet.Member, "run", lambda self: None)
    monkeypatch.setattr(
        cdc.cli.running.fleet, "Children", lambda *_, **__: nullcontext(SimpleNamespace(folder=tmp_path))
    )
    for words in commands:
        assert run(*words).exit_code == 0, words
    brokers.groups["production"] = [GroupMember("m1", "m1-1", "h", (0,)), GroupMember("m2", "m2-1", "h", (1,))]
    records = brokers.records["production"]
    for name, member, at in (("shop", "m1", "38.499"), ("billing", "m2", "39.308")):
        since_ms = round(datetime.fromisoformat(f"2026-11-26T06:28:{at}+00:00").timestamp() * 1000)
        records[f"status/{name}"] = Status(member=member, state="streaming", since_ms=since_ms).to_bytes()
    (shown,) = re.findall(r"^```text\n(fleet production.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert run("status").stdout == shown


def test_an_empty_file_is_told_with_what_it_may_have(tmp_path: Path) -> None:
    """No key of it is needed: each may be an option."""
    file = tmp_path / "fleet.yaml"
    file.write_text("# nothing\n")
    with pytest.raises(ConfigError, match="the file is empty") as told:
        load_fleet(file, fleet=None, bootstrap_servers=None)
    assert told.value.hint == "it may have the keys fleet, bootstrap_servers, replication_factor, options, metrics"
