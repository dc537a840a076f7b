"""A member's loop, over brokers and children in memory; and children that are real processes."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cdc.dev.servers import launch
from cdc.fleet import children as children_module
from cdc.fleet import member as member_module
from cdc.fleet.children import Children
from cdc.fleet.entry import Entry, read_entries
from cdc.fleet.member import Member
from cdc.fleet.report import Report
from cdc.fleet.seams import Assigned, GroupMember, Lost, Revoked, clock_s
from cdc.fleet.standing import NO_MEMBER, NOT_YET, Status, standing
from cdc.model.errors import OperatorError, RetryableError, VerdictError
from cdc.testing.fleet import MemoryBrokers, MemoryFleet, MemoryMembership

YAML = """\
name: {0}
source: {{type: postgres, url: 'postgresql://h/d', tables: [public.t]}}
sink: {{bootstrap_servers: 'h:1'}}
"""


class MemoryChildren(Children):
    """Children that do what a test tells them."""

    def __init__(self) -> None:
        self.there: dict[str, bool] = {}
        self.told: list[str] = []
        self.to_end: list[tuple[str, int]] = []
        self.to_say: list[tuple[str, Report]] = []
        self.obedient = True
        self.no_room_for = ""

    def start(self, entry: Entry, *, take_over: bool) -> None:
        if entry.name == self.no_room_for:
            self.no_room_for = ""
            raise OSError(28, "No space left on device")
        self.there[entry.name] = take_over
        self.told.append(f"start {entry.name}{' over' * take_over}")

    def await_ready(self) -> None: ...

    def hang_up(self, name: str) -> None: ...

    def stop(self, name: str) -> None:
        self.told.append(f"stop {name}")
        if self.obedient:
            self.to_end.append((name, 0))

    def kill(self, name: str) -> None:
        self.told.append(f"kill {name}")
        self.to_end.append((name, -9))

    def reports(self) -> Iterator[tuple[str, Report]]:
        said, self.to_say = self.to_say, []
        yield from said

    def ended(self) -> list[tuple[str, int]]:
        ended, self.to_end = self.to_end, []
        for name, _ in ended:
            del self.there[name]
        return ended


class Fleet(MemoryFleet):
    """Keeps the membership, through which the test speaks for the group."""

    joined: MemoryMembership | None = None

    def join(self, member: str) -> MemoryMembership:
        self.joined = super().join(member)
        return self.joined


class Stage:
    def __init__(self) -> None:
        self.brokers = MemoryBrokers()
        self.fleet, self.children = Fleet(self.brokers, "f"), MemoryChildren()
        self.member = Member(self.fleet, "m1", self.children)
        self.failure: BaseException | None = None

    def add(self, name: str, place: int) -> None:
        self.fleet.make(place + 1)
        entry = Entry(name=name, prefix=name, place=place, added_ms=place, yaml=YAML.format(name))
        self.fleet.write(f"connector/{name}", entry.to_bytes())

    def run(self) -> None:
        try:
            self.member.run()
        except BaseException as exc:  # noqa: BLE001 - looked at by the test
            self.failure = exc

    def tell(self, news: Assigned | Revoked | Lost) -> None:
        self.until(lambda: self.fleet.joined is not None)
        assert self.fleet.joined is not None
        self.fleet.joined.told.put(news)

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert self.failure is None, self.failure
            assert time.monotonic() < deadline, self.children.told
            time.sleep(0.01)

    def status(self, name: str) -> Status | None:
        value = self.brokers.records["f"].get(f"status/{name}")
        return Status.from_bytes(value) if value else None


@contextmanager
def at_work(stage: Stage) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=stage.run, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        stage.member.stop()
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_module, "_TICK_S", 0.01)
    monkeypatch.setattr(member_module, "_LOOK_S", 0.01)
    monkeypatch.setattr(member_module, "_TWIN_S", 0.5)


def test_a_place_is_given_back_when_its_child_has_ended() -> None:
    """SIGTERM then stops the rest, before the member leaves the group."""
    stage = Stage()
    stage.add("a", 0)
    stage.add("b", 1)
    with at_work(stage) as thread:
        stage.tell(Assigned((0, 1), clock_s()))
        stage.until(lambda: stage.children.told == ["start a over", "start b over"])
        stage.children.obedient = False
        back = Revoked((0,), threading.Event())
        stage.tell(back)
        stage.until(lambda: "stop a" in stage.children.told)
        time.sleep(0.1)
        assert not back.free.is_set()
        stage.children.to_end.append(("a", 0))
        assert back.free.wait(60)
        stage.children.obedient = True
        stage.member.stop()
        thread.join(60)
    assert stage.children.told[-1] == "stop b"
    assert stage.failure is None
    assert stage.fleet.joined is not None
    assert stage.fleet.joined.closed


def test_a_fleet_that_is_not_there_yet_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """So are brokers that are away; each is said. Entries that come later are started; those that go are stopped."""
    caplog.set_level(logging.INFO)
    stage = Stage()
    stage.brokers.away = RetryableError("Kafka at h:1 cannot be reached", hint="is it running?")
    with at_work(stage):
        stage.until(lambda: "member m1: Kafka at h:1 cannot be reached; is it running?" in caplog.messages)
        stage.brokers.away = None
        stage.add("a", 0)
        stage.tell(Assigned((0, 1), clock_s()))
        stage.until(lambda: stage.children.told == ["start a over"])
        stage.add("b", 1)
        stage.until(lambda: "b" in stage.children.there)
        stage.fleet.write("connector/b", None)
        stage.until(lambda: "stop b" in stage.children.told)


def test_a_member_that_is_out_lets_go_on_what_runs_and_restarts_nothing_that_is_fenced() -> None:
    stage = Stage()
    stage.add("a", 0)
    stage.add("b", 1)
    with at_work(stage):
        stage.tell(Assigned((0, 1), clock_s()))
        stage.until(lambda: len(stage.children.there) == 2)
        stage.tell(Lost())
        stage.children.to_end.append(("a", 3))
        stage.until(lambda: "a" not in stage.children.there)
        stage.tell(Assigned((), clock_s()))  # the group's first word; a share may follow
        stage.until(lambda: not stage.children.there)
        stage.tell(Assigned((1,), clock_s()))
        stage.until(lambda: "b" in stage.children.there)
    assert stage.children.told == ["start a over", "start b over", "stop b", "start b over", "stop b"]


def test_states_are_written_and_corrected() -> None:
    """What an earlier member writes late, after it was cut off, does not stay; what is gone is said again."""
    stage = Stage()
    stage.add("a", 0)
    with at_work(stage):
        stage.tell(Assigned((0,), clock_s()))
        stage.until(lambda: (said := stage.status("a")) and said.state == "starting" and said.member == "m1")
        stage.children.to_say.append(("a", Report(None, {"kind": "RetryableError", "message": "away", "hint": "wait"})))
        stage.children.to_say.append(("a", Report("retrying", None)))
        stage.until(lambda: (said := stage.status("a")) and said.state == "retrying" and said.error)
        stage.children.to_say.append(("a", Report("streaming", None)))
        stage.until(lambda: (said := stage.status("a")) and said.state == "streaming" and said.error is None)
        late = Status(member="m0", state="failed", since_ms=1)
        stage.fleet.write("status/a", late.to_bytes())
        stage.until(lambda: (said := stage.status("a")) and said.member == "m1")
        stage.until(lambda: stage.member._shown == {"a"})
        stage.fleet.write("status/a", None)  # as a topic that was made again has it: none
        stage.until(lambda: (said := stage.status("a")) and said.state == "streaming")
        stage.until(lambda: stage.member._shown == {"a"})
        stage.tell(Lost())  # the same, but the group has its places again after the topic has its entries
        stage.until(lambda: not stage.member._roster.mine("a"))
        stage.fleet.write("status/a", None)
        stage.until(lambda: not stage.member._shown)
        stage.tell(Assigned((0,), clock_s()))
        stage.until(lambda: (said := stage.status("a")) and said.state == "streaming")
        stage.children.to_say.append(("a", Report(None, {"kind": "ConfigError", "message": "wrong", "hint": None})))
        stage.children.to_end.append(("a", 2))
        stage.until(lambda: (said := stage.status("a")) and said.state == "failed" and said.again_ms)
        said = stage.status("a")
        assert said is not None
        assert said.error is not None
        assert said.error["message"] == "wrong"


def test_one_that_is_killed_shows_how_it_ended() -> None:
    """The kernel gives no reason where memory is short."""
    stage = Stage()
    stage.add("a", 0)
    with at_work(stage):
        stage.tell(Assigned((0,), clock_s()))
        stage.until(lambda: "a" in stage.children.there)
        stage.children.to_end.append(("a", -9))
        stage.until(lambda: (said := stage.status("a")) and said.state == "failed" and said.error)
        said = stage.status("a")
        assert said is not None
        assert said.error is not None
        assert said.error["message"] == "its process was ended by signal 9 and gave no reason"
        stage.until(lambda: "start a" in stage.children.told)  # by itself, without taking over


def test_a_verdict_stops_a_connector_until_somebody_decides(caplog: pytest.LogCaptureFixture) -> None:
    """It was started again every minute for ever. SIGHUP tries again."""
    stage = Stage()
    stage.add("a", 0)
    with at_work(stage):
        stage.tell(Assigned((0,), clock_s()))
        stage.until(lambda: "a" in stage.children.there)
        stage.children.to_say.append(
            ("a", Report(None, {"kind": "GapError", "message": "gone", "hint": "cdc snapshot"}))
        )
        stage.children.to_end.append(("a", VerdictError.exit_code))
        stage.until(lambda: (said := stage.status("a")) and said.state == "stopped")
        said = stage.status("a")
        assert said is not None
        assert (said.again_ms, (said.error or {})["message"]) == (None, "gone")
        assert "exit code 4; once it is decided what to do: cdc fleet restart a" in caplog.text
        stage.member.hang_up()
        stage.until(lambda: stage.children.told == ["start a over", "start a"])


def test_a_child_that_cannot_be_started_is_alone_with_it() -> None:
    stage = Stage()
    stage.add("a", 0)
    stage.add("b", 1)
    stage.children.no_room_for = "a"
    with at_work(stage):
        stage.tell(Assigned((0, 1), clock_s()))
        stage.until(lambda: "b" in stage.children.there)
        stage.until(lambda: (said := stage.status("a")) and said.state == "failed" and said.error)
        said = stage.status("a")
        assert said is not None
        assert said.error is not None
        assert said.error["message"] == "it cannot be started: No space left on device"
        stage.until(lambda: "start a" in stage.children.told)


def test_two_members_of_one_name_are_refused() -> None:
    """The one that comes later; of two that came at once, the one whose identity is the greater."""
    stage = Stage()
    stage.add("a", 0)
    stage.brokers.groups["f"] = [GroupMember("m1", "m1-0", "10.0.0.7", ())]
    stage.run()
    assert isinstance(stage.failure, OperatorError)
    assert stage.failure.message == "another member of the fleet is called m1, at 10.0.0.7"
    stage = Stage()
    stage.add("a", 0)
    with at_work(stage) as thread:
        stage.until(lambda: stage.fleet.joined is not None)
        stage.brokers.groups["f"] = [GroupMember("m1", "m1-0", "10.0.0.7", ()), GroupMember("m1", "m1-1", "here", ())]
        stage.tell(Assigned((), clock_s()))
        thread.join(60)
        assert isinstance(stage.failure, OperatorError)


def test_what_status_shows() -> None:
    """A state is a member's word only while the place is that member's."""
    entries = read_entries(
        {
            name: Entry(name=name, prefix=name, place=place, added_ms=1, yaml=YAML.format(name)).to_bytes()
            for place, name in enumerate(("a", "b", "c", "d"))
        }
        | {"wrong": b"{"}
    )
    error = {"at_ms": 1, "kind": "RetryableError", "message": "away", "hint": "wait"}
    said = {
        "a": Status(member="m1", state="streaming", since_ms=5),
        "b": Status(member="m0", state="streaming", since_ms=5, error=error),
        "d": Status(member="m1", state="streaming", since_ms=5),
    }
    rows = standing(entries, said, [GroupMember("m1", "m1-1", "h", (0, 1, 2))])
    assert {name: (row["state"], row["member"]) for name, row in rows.items()} == {
        "a": ("streaming", "m1"),
        "b": ("waiting", "m1"),
        "c": ("waiting", "m1"),
        "d": ("waiting", None),
        "wrong": ("failed", None),
    }
    assert rows["b"]["last_error"] == error
    assert rows["d"]["last_error"] == NOT_YET
    assert standing(entries, said, [])["d"]["last_error"] == NO_MEMBER
    assert rows["wrong"]["last_error"]["message"] == "entry wrong is no record of this release"


def test_the_nursery_has_one_thread_and_all_that_a_connector_needs() -> None:
    """A fork of a process with threads, or with connections, would not be safe; one that imports would be slow."""
    code = (
        "import os, sys; from cdc.fleet import nursery; nursery.preload();"
        "before = set(sys.modules); print(len(os.listdir('/proc/self/task')), len(os.listdir('/proc/self/fd')));"
        "import cdc.cli.running.run, connectors.postgres.source, connectors.mysql.source;"
        "import snapshot.postgres.snapshotter, sinks.kafka;"
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    threads_and_files, imported = done.stdout.splitlines()
    assert threads_and_files == "1 4"  # the last one lists the others
    assert imported == "[]"


CHILDREN = """
import sys, time
from cdc.fleet.children import Children
from cdc.fleet.entry import Entry
from cdc.telemetry.fleet_meter import FleetMeter
yaml = "name: {0}\\nsource: {{type: postgres, url: '{1}', tables: [public.t]}}\\n" \\
    "sink: {{bootstrap_servers: '127.0.0.1:1'}}"
with Children(metrics=True) as children:
    meter = FleetMeter("f", "m", children.folder)
    meter.has(frozenset({"wrong", "waits"}))
    for name, url in (("wrong", "${NOWHERE}"), ("waits", "postgresql://127.0.0.1:1/d")):
        entry = Entry(name=name, prefix=name, place=0, added_ms=0, yaml=yaml.format(name, url))
        children.start(entry, take_over=False)
    print([child.pid for child in children._children.values()], flush=True)
    ended = []
    while not ended:
        for name, report in children.reports():
            print(name, report.state, report.error and report.error["message"].rpartition(":")[2], flush=True)
        ended = children.ended()
        time.sleep(0.05)
    print(ended, sorted(path.name for path in children.folder.glob("*.*")), flush=True)
    while not meter.children(""):
        time.sleep(1.1)
    print(*(line for line in meter.children("")[0].decode().splitlines() if "retrying" in line), flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel is asked to end children with their parent on Linux")
def test_children_tell_their_ends_and_die_with_their_member(tmp_path: Path) -> None:
    """One whose file is wrong ends 2, and says why; one that waits is gone at once when its member is killed.

    It shows its metrics to the member, also where the folder's name is longer than what the kernel takes.
    """
    long = tmp_path / ("t" * 90)
    long.mkdir()
    with subprocess.Popen(
        [sys.executable, "-P", "-c", CHILDREN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "TMPDIR": str(long)},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        lines: list[str] = []
        while not lines or not lines[-1].startswith("[('wrong', 2)]"):
            line = process.stdout.readline()
            assert line, process.communicate()
            lines.append(line.strip())
        assert "wrong None  environment variable NOWHERE is not set" in lines
        assert lines[-1].startswith("[('wrong', 2)]")
        assert "waits.yaml" in lines[-1]
        assert "'wrong" not in lines[-1].partition("]")[2], "what it left is cleared away"
        shown = process.stdout.readline().strip()
        assert re.fullmatch(r'cdc_connector_state\{connector="waits",state="retrying"\} [01]\.0', shown), shown
        wrong, waits = (int(pid) for pid in lines[0].strip("[]").split(","))
        os.kill(waits, 0)
        assert Path(f"/proc/{waits}/comm").read_text() == "cdc-waits\n"
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        deadline = time.monotonic() + 60
        while Path(f"/proc/{waits}/stat").exists() and Path(f"/proc/{waits}/stat").read_text().split(") ")[1][0] != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert wrong != waits
        assert process.stderr is not None
        lines = [line for line in process.stderr.read().splitlines() if line]
        assert any("ERROR   wrong: " in line for line in lines), lines
        named = re.compile(r"\S+ (ERROR|WARNING|INFO) +(wrong|waits): ")
        assert [line for line in lines if not named.match(line)] == [], "nobody knows whose line it is"


def test_a_nursery_that_is_killed_takes_its_children_along_and_is_made_again() -> None:
    yaml = YAML.format("waits").replace("//h/d", "//127.0.0.1:1/d").replace("h:1", "127.0.0.1:1")
    entry = Entry(name="waits", prefix="waits", place=0, added_ms=0, yaml=yaml)
    with Children() as children:
        for _ in range(2):
            children.start(entry, take_over=False)
            pid = children._children["waits"].pid
            assert children._nursery is not None
            children._nursery.kill()
            deadline = time.monotonic() + 60
            while not (ended := children.ended()):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            assert ended == [("waits", -9)]
            while launch.started_at(pid):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            shutil.rmtree(children.folder)  # as tmpreaper does, or a person


def test_what_cleans_temporary_files_leaves_a_member_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """After ten days systemd took the folder, unless somebody locks it, and no connector was started any more."""

    def is_locked(folder: Path) -> bool:
        found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(found)
        return False

    entry = Entry(name="a", prefix="a", place=0, added_ms=0, yaml=YAML.format("a"))
    with Children() as children:
        assert is_locked(children.folder)
        shutil.rmtree(children.folder)
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(PermissionError):  # another user has made it meanwhile
            children.start(entry, take_over=False)
        assert [path.name for path in children.folder.iterdir()] == ["member"]
        assert is_locked(children.folder)
        assert stat.S_IMODE(children.folder.stat().st_mode) == 0o700


def test_a_machine_that_gives_no_process_more_ends_none_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `ulimit -u` or a container's limit of processes is reached, all connectors of the member were killed."""
    code = (
        "import errno, os, sys; from cdc.fleet import nursery; fork, calls = os.fork, []\n"
        "def limited():\n"
        "    calls.append(1)\n"
        "    if len(calls) == 2: raise BlockingIOError(errno.EAGAIN, 'no')\n"
        "    return fork()\n"
        "os.fork = limited; nursery.main(int(sys.argv[-1]))"
    )
    monkeypatch.setattr(children_module, "SAFE_PATH", ("-P", "-c", code))
    yaml = YAML.replace("//h/d", "//127.0.0.1:1/d").replace("h:1", "127.0.0.1:1")
    with Children() as children:
        a, b, c = (Entry(name=n, prefix=n, place=0, added_ms=0, yaml=yaml.format(n)) for n in "abc")
        children.start(a, take_over=False)
        with pytest.raises(OSError, match="temporarily unavailable"):
            children.start(b, take_over=False)
        children.start(c, take_over=False)
        assert children.ended() == []
        assert sorted(path.name for path in children.folder.glob("*.*")) == ["a.yaml", "c.yaml"]
        for child in children._children.values():
            os.kill(child.pid, 0)
