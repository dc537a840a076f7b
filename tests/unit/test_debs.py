"""Programs from Debian's archive and from the path: which is taken, and what is said when none can be had."""

from __future__ import annotations

import re
import socket
import threading
from pathlib import Path

import pytest

from cdc.dev import debs
from cdc.dev.servers import etcd, mariadb, mysql, mysqld
from cdc.dev.servers.process import Settings
from cdc.model.errors import OperatorError

PACKAGE = debs.Package("mysql-server-core", "unstable")
LISTED = """\
Vendor|stable|http://vendor.invalid/apt/
Debian|bookworm|http://reader:hunter2@mirror.invalid/debian/
Debian|bookworm-updates|http://mirror.invalid/debian/
Debian|bookworm-security|http://mirror.invalid/debian-security/
"""


def script(folder: Path, name: str, *lines: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("\n".join(("#!/bin/sh", *lines)) + "\n")
    (folder / name).chmod(0o755)


@pytest.fixture(name="path")
def _path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the path, and an empty cache."""
    monkeypatch.setenv("CDC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "bin"


def test_without_apt_it_is_said_what_to_install(path: Path) -> None:
    with pytest.raises(OperatorError, match=r"there is no apt-get on the path.* mysql-server-core") as caught:
        debs.fetch(PACKAGE)
    assert "install mysql yourself" in str(caught.value.hint)


def test_apts_complaint_is_shown_without_logins_and_nothing_is_left(path: Path, tmp_path: Path) -> None:
    script(path, "dpkg-deb")
    script(
        path,
        "apt-get",
        f'case "$*" in indextargets*) echo "{LISTED}"; exit;; esac',
        'echo "E: Failed to fetch http://reader:hunter2@mirror.invalid/debian/dists/unstable/InRelease"',
        "exit 100",
    )
    with pytest.raises(OperatorError, match=r"mysql-server-core could not be fetched from Debian's suite un") as caught:
        debs.fetch(PACKAGE)
    assert "| E: Failed to fetch http://mirror.invalid/debian/dists/unstable/InRelease" in caught.value.message
    assert "hunter2" not in str(caught.value)
    assert [each for each in (tmp_path / "cache" / "debs").iterdir() if each.is_dir()] == []


def test_a_package_that_cannot_be_unpacked_leaves_nothing(path: Path, tmp_path: Path) -> None:
    script(path, "dpkg-deb", 'echo "No space left on device" >&2; exit 2')
    script(
        path,
        "apt-get",
        f'case "$*" in indextargets*) echo "{LISTED}"; exit;; esac',
        'case "$*" in *install*) : > "${3%apt.conf}cache/archives/a_1_all.deb";; esac',
    )
    with pytest.raises(OperatorError, match=r"a_1_all\.deb could not be unpacked.* No space left on device"):
        debs.fetch(PACKAGE)
    assert [each for each in (tmp_path / "cache" / "debs").iterdir() if each.is_dir()] == []


def test_a_machine_whose_apt_knows_no_archive_is_told_so(path: Path) -> None:
    script(path, "dpkg-deb")
    script(path, "apt-get", "exit 0")
    with pytest.raises(OperatorError, match="apt knows no archive"):
        debs.fetch(PACKAGE)


def test_debians_own_archive_is_asked_first_and_each_once(path: Path) -> None:
    script(path, "apt-get", f'echo "{LISTED}"')
    assert debs._archives() == ["http://reader:hunter2@mirror.invalid/debian/", "http://vendor.invalid/apt/"]


def test_a_damaged_cache_is_named(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=re.escape(str(tmp_path))) as caught:
        debs.Unpacked(tmp_path).command("usr/sbin/mysqld")
    assert str(caught.value.hint).startswith("rm -r ")


@pytest.mark.parametrize("top", ["lib", "usr/lib"])
def test_a_program_runs_by_the_loader_that_came_with_it(tmp_path: Path, top: str) -> None:
    """Older suites have the C library in /lib."""
    for name in (
        f"{top}/x86_64-linux-gnu/ld-linux-x86-64.so.2",
        "usr/lib/x86_64-linux-gnu/libz.so.1",
        "usr/sbin/mysqld",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / top / "x86_64-linux-gnu" / "libc.so.6").touch()
    loader, *options, program = debs.Unpacked(tmp_path).command("usr/sbin/mysqld")
    assert loader == str(tmp_path / top / "x86_64-linux-gnu" / "ld-linux-x86-64.so.2")
    assert program == str(tmp_path / "usr/sbin/mysqld")
    searched = options[options.index("--library-path") + 1].split(":")
    assert set(searched) == {str(tmp_path / each / "x86_64-linux-gnu") for each in {top, "usr/lib"}}


MYSQL_84 = "/opt/bin/mysqld  Ver 8.4.6 for Linux on x86_64 (MySQL Community Server - GPL)"
MYSQL_57 = "mysqld  Ver 5.7.44 for Linux on x86_64 (MySQL Community Server (GPL))"
MARIADB = "Ver 11.8.3-MariaDB-0+deb13u1 from Debian for debian-linux-gnu on x86_64 ( -- Please help get to 10k stars)"
MARIADB_OLD = "mariadbd  Ver 10.5.29-MariaDB for Linux on x86_64 (MariaDB Server)"


@pytest.fixture(name="debians")
def _debians(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What would be fetched; it passes for either server."""
    script(path, "debians", 'echo "mysqld Ver 9.7.4-2 for x; mariadbd Ver 10.11.18-MariaDB-0 for x"')
    monkeypatch.setattr(debs.Unpacked, "command", lambda _self, _program: (str(path / "debians"),))
    monkeypatch.setattr(debs, "_retrieve", lambda package: package.folder.mkdir())
    return path / "debians"


@pytest.mark.parametrize(
    ("kind", "said", "found"),
    [
        (mysql._KIND, MYSQL_84, "MySQL 8.4.6"),
        (mysql._KIND, MYSQL_57, None),
        (mysql._KIND, MARIADB, None),
        (mysql._KIND, "", None),
        (mariadb._KINDS["mariadb"], f"mariadbd  {MARIADB}", "MariaDB 11.8.3"),
        (mariadb._KINDS["mariadb"], MARIADB_OLD, None),
        (mariadb._KINDS["mariadb11"], f"mariadbd  {MARIADB}", "MariaDB 11.8.3"),
        (mariadb._KINDS["mariadb"], MYSQL_84, None),
    ],
)
def test_the_path_s_server_is_taken_if_it_is_one_and_new_enough(
    debians: Path, tmp_path: Path, kind: mysqld.Kind, said: str, found: str | None
) -> None:
    own = debians.parent / kind.program
    script(own.parent, own.name, f'echo "{said}"')
    program = mysqld.find(kind, Settings(tmp_path))
    assert program.outside == (found is None)
    assert program.path == (own if found else debians)
    suite = kind.package.suite
    of_debian = f"{'MySQL 9.7.4-2' if kind is mysql._KIND else 'MariaDB 10.11.18'}, Debian's {suite}"
    assert Settings(tmp_path).get("program") == (f"{found}, {own}" if found else of_debian)


@pytest.mark.parametrize(
    ("said", "found"),
    [("etcd Version: 3.6.1", "etcd 3.6.1"), ("etcd Version: 3.5.12", None), ("etcd Version: 3.4.23", None), ("", None)],
)
def test_the_path_s_etcd_is_taken_if_it_is_new_enough(
    debians: Path, tmp_path: Path, said: str, found: str | None
) -> None:
    script(debians.parent, debians.name, 'echo "etcd Version: 3.5.16"')
    own = debians.parent / "etcd"
    script(own.parent, own.name, f'echo "{said}"')
    launch = etcd.prepare(tmp_path, options={"name": "given"})
    assert launch.argv[0] == str(own if found else debians)
    assert "--name=given" in launch.argv
    assert Settings(tmp_path).get("program") == (f"{found}, {own}" if found else "etcd 3.5.16, Debian's trixie")
    script(own.parent, own.name, 'echo "etcd Version: 3.6.1"')
    assert etcd.prepare(tmp_path).argv[0] == launch.argv[0] or found  # data stay with the program that has made them


def test_data_made_by_debians_server_stay_with_it(debians: Path, tmp_path: Path) -> None:
    """A server on the path may be older, and would refuse them."""
    Settings(tmp_path).keep("program_from", "Debian")
    script(debians.parent, "mysqld", f'echo "{MYSQL_84}"')
    assert mysqld.find(mysql._KIND, Settings(tmp_path)).path == debians


def test_a_fetched_program_that_does_not_run_is_named(debians: Path, tmp_path: Path) -> None:
    script(debians.parent, debians.name, "exit 1")
    with pytest.raises(OperatorError, match="does not run here") as caught:
        mysqld.find(mysql._KIND, Settings(tmp_path))
    assert str(caught.value.hint).startswith("rm -r ")


def test_what_greets_is_a_server_that_serves() -> None:
    """An error instead of a greeting (too many connections, shutting down) is not one, and neither is silence."""
    for packet, ready in ((b"\x4a\0\0\0\x0a9.7", True), (b"\x10\0\0\0\xffno", False), (b"", False)):
        with socket.create_server(("127.0.0.1", 0)) as server:

            def answer(server: socket.socket = server, packet: bytes = packet) -> None:
                connection, _ = server.accept()
                with connection:
                    connection.sendall(packet)

            serving = threading.Thread(target=answer)
            serving.start()
            assert mysqld._greets(server.getsockname()[1]) is ready
            serving.join()
    assert not mysqld._greets(1)
