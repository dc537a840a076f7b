"""Laws of starting and stopping one process, on programs that do nothing."""

from __future__ import annotations

import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from cdc.dev import stack
from cdc.dev.java import java, java_major
from cdc.dev.servers import launch, process
from cdc.dev.servers.process import Launch, Server, Settings, free_port, write_private
from cdc.model.errors import ConfigError, OperatorError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SLEEPER = "import pathlib, time; pathlib.Path('ready').touch(); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER
WITH_CHILD = (
    "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); " + SLEEPER
)


def python(code: str, *, ready_within_s: float = 20) -> Callable[[Path], Launch]:
    """A server that is a Python one-liner; ready when it has made the file ``ready``."""

    def prepare(folder: Path) -> Launch:
        (folder / "ready").unlink(missing_ok=True)
        return Launch(
            argv=(sys.executable, "-S", "-c", code),
            ready=lambda _pid: (folder / "ready").exists(),
            url="nowhere:secret@",
            ready_within_s=ready_within_s,
        )

    return prepare


@pytest.fixture(name="make")
def _make(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def make(code: str = SLEEPER, *, ready_within_s: float = 20) -> Server:
        made.append(Server("sleeper", tmp_path / "sleeper", python(code, ready_within_s=ready_within_s)))
        return made[-1]

    yield make
    for server in made:
        server.kill()


def state(pid: int) -> str:
    """The state letter of proc_pid_stat(5), or '-' when there is no such process."""
    listed = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return listed.stdout.strip()[:1] or "-"


def wait_until(condition: Callable[[], bool], *, within_s: float = 10) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def test_a_start_of_a_running_server_keeps_it(make: Callable[..., Server]) -> None:
    server = make()
    server.start()
    first = server.pid
    server.start()
    make().start()  # another object of the same folder
    assert first is not None
    assert server.pid == first


@pytest.mark.parametrize("die_with_parent", [True, False])
def test_stop_ends_it_and_a_second_stop_does_nothing(make: Callable[..., Server], *, die_with_parent: bool) -> None:
    server = make()
    server.start(die_with_parent=die_with_parent)
    pid = server.pid
    assert pid is not None
    server.stop()
    assert not server.running
    assert launch.started_at(pid) is None
    server.stop()


def test_stop_kills_what_does_not_end_when_asked(make: Callable[..., Server]) -> None:
    server = make(STUBBORN)
    server.start()
    server.stop(timeout_s=0.3)
    assert not server.running


def test_a_paused_server_stops_too(make: Callable[..., Server]) -> None:
    server = make()
    server.start()
    pid = server.pid
    assert pid is not None
    server.pause()
    wait_until(lambda: state(pid) == "T")
    server.stop()
    assert not server.running


def test_pause_resume_and_kill_reach_the_whole_family(make: Callable[..., Server]) -> None:
    server = make(WITH_CHILD)
    server.start()
    pid = server.pid
    assert pid is not None
    family = launch.family(pid)
    assert len(family) == 2
    server.pause()
    wait_until(lambda: [state(each) for each in family] == ["T", "T"])
    server.resume()
    wait_until(lambda: "T" not in [state(each) for each in family])
    server.kill()
    assert [launch.started_at(each) for each in family] == [None, None]


def test_a_reused_pid_is_not_taken_for_the_server(make: Callable[..., Server], tmp_path: Path) -> None:
    """A pid file from before a reboot may name a stranger: it is neither kept as ours nor killed."""
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        server = make()
        (tmp_path / "sleeper").mkdir()
        (tmp_path / "sleeper" / "server.pid").write_text(f"{stranger.pid} 12345\n")
        assert server.pid is None
        server.stop()
        server.kill()
        assert stranger.poll() is None
        server.start()
        assert server.pid not in {None, stranger.pid}
        assert stranger.poll() is None
        stranger.kill()


@pytest.mark.parametrize("content", ["", "abc", "17", "17 ", "17 x y\n", "\n"])
def test_a_damaged_pid_file_names_nobody(make: Callable[..., Server], tmp_path: Path, content: str) -> None:
    (tmp_path / "sleeper").mkdir()
    (tmp_path / "sleeper" / "server.pid").write_text(content)
    assert make().pid is None


def test_a_failed_start_shows_the_end_of_the_log(make: Callable[..., Server]) -> None:
    server = make("import sys; sys.exit('the disk is made of cheese')")
    with pytest.raises(OperatorError, match="ended with exit code 1") as caught:
        server.start()
    assert "| the disk is made of cheese" in caught.value.message
    assert "secret" not in str(caught.value)


def test_a_missing_program_is_an_operators_error(tmp_path: Path) -> None:
    server = Server(
        "ghost", tmp_path / "ghost", lambda _: Launch(argv=("/no/such/program",), ready=lambda _: False, url="-")
    )
    with pytest.raises(OperatorError, match="/no/such/program"):
        server.start()


def test_a_server_that_never_answers_is_given_up_and_killed(make: Callable[..., Server]) -> None:
    server = make("import time; time.sleep(600)", ready_within_s=0.5)
    with pytest.raises(OperatorError, match="does not answer after"):
        server.start()
    assert not server.running


def test_ending_without_a_supervisor_is_noticed(make: Callable[..., Server]) -> None:
    """SIGKILL to the watchman takes the server along."""
    server = make()
    server.start()
    pid = server.pid
    assert pid is not None
    watchman = int(launch._stat(pid)[1]) if sys.platform == "linux" else 0
    if not watchman:
        pytest.skip("needs Linux: PR_SET_PDEATHSIG")
    os.kill(watchman, signal.SIGKILL)
    wait_until(lambda: not server.running)


def test_settings_are_private_and_kept(tmp_path: Path) -> None:
    port = Settings(tmp_path).port("port")
    assert Settings(tmp_path).port("port") == port
    path = tmp_path / "settings.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text()) == {"port": str(port)}


def test_write_private_replaces_what_a_kill_left(tmp_path: Path) -> None:
    (tmp_path / "file.new").write_text("half")
    write_private(tmp_path / "file", "whole")
    assert (tmp_path / "file").read_text() == "whole"
    assert not (tmp_path / "file.new").exists()


def test_ports_are_below_the_ephemeral_range() -> None:
    assert 20000 <= free_port() < 32000


def test_no_port_is_given_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By chance a broker would listen on one port for its clients and for its controller, and not start."""
    monkeypatch.setattr(random.SystemRandom, "sample", lambda _self, ports, k: [*ports][-k:])
    settings = Settings(tmp_path)
    assert settings.port("port") != settings.port("controller_port")
    monkeypatch.setattr(process, "_given", set())  # as in the next process
    assert len({settings.port(key) for key in ("port", "controller_port", "secure_port")}) == 3


def test_urls_with_passwords_do_not_reach_reprs(make: Callable[..., Server]) -> None:
    server = make()
    server.start()
    assert "secret" in server.url
    assert "secret" not in repr(server) + repr(stack.Servers(postgres18_url=server.url))


@pytest.mark.parametrize(
    ("printed", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime', 17),
        ('java version "1.8.0_402"\nJava(TM) SE', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
        ("", None),
    ],
)
def test_the_major_version_of_java_is_read(printed: str, major: int | None) -> None:
    assert java_major(printed) == major


@pytest.mark.parametrize(
    ("script", "found"),
    [("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n", '"11.0.2"'), ("#!/bin/sh\nexit 3\n", "exit code 3")],
)
def test_an_old_java_is_named_in_the_first_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, found: str
) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(script)
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(OperatorError, match=r"^Java 17 or newer is needed") as caught:
        java.__wrapped__()
    assert found in caught.value.message.partition("\n")[0]


def test_a_missing_java_is_named_in_the_first_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OperatorError, match=r"^Java 17 or newer is needed, there is no java on the path"):
        java.__wrapped__()


def test_an_unknown_server_is_wrong_use() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown server postgres17; there are: etcd, kafka, mariadb, mariadb11, mysql"
    ):
        stack.canonical(["kafka", "postgres17"])


def test_an_alias_and_its_server_are_one() -> None:
    assert stack.canonical(["postgres", "kafka", "postgres18"]) == ("postgres18", "kafka")
