"""Forks a member's children from a process that has loaded all they need: a take-over does not wait for imports.

    python -m cdc.fleet.nursery SOCKET

Loading what a connector is made of takes most of a second of CPU, and a member that takes over starts many at once; a
fork takes milliseconds, and shares the memory. The nursery has one thread and talks to nobody but its member, over a
socket, in lines of JSON. One child is asked for at a time, so its descriptor is the only one on its way:

    member    {"start": argv, "name": …, "socket": …}, with the report pipe's descriptor · {"signal": number, "pid": …}
    nursery   {"ready": pid}, once · {"started": pid} or {"refused": errno} · {"ended": pid, "code": …}

The kernel ends it with its member, and the children with it (Linux); elsewhere it ends both when the socket is closed.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import importlib
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Final

import orjson

from cdc.config.registry import SINKS, SOURCES
from cdc.fleet.report import METRICS_SOCKET, REPORT_FD
from cdc.machine.await_readable import await_readable
from cdc.machine.child_processes import AMONG_OTHERS, PRIVATE_FOLDER

READ_BYTES: Final = 65_536
_MODULES: Final = ("cdc.cli.main", "cdc.cli.running.run", "sinks.topics.records.positions")
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_NO_PARENT: Final = 127


def preload() -> None:
    """Import what a connector needs; what is not there fails where it is asked for."""
    parts = [part for parts in SOURCES.values() for part in parts]
    for module in dict.fromkeys([*_MODULES, *(part.partition(":")[0] for part in (*parts, *SINKS.values()))]):
        with suppress(ImportError):
            importlib.import_module(module)


def serve(channel: socket.socket) -> list[str]:
    """Fork children as asked, until the member is gone. Returns in each child alone: the arguments of its `cdc`."""
    children: set[int] = set()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    heard, reports = b"", list[int]()
    while True:
        ready = await_readable([channel.fileno(), woken])
        if woken in ready:
            os.read(woken, 4096)
        _reap(channel, children)
        if channel.fileno() not in ready:
            continue
        said, descriptors, _, _ = socket.recv_fds(channel, READ_BYTES, 1)
        if not said:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            sys.exit(0)
        *lines, heard = (heard + said).split(b"\n")
        reports += descriptors
        for asked in map(orjson.loads, lines):
            if "signal" in asked:
                if asked["pid"] in children:  # not reaped yet, so the number is still its own
                    os.kill(asked["pid"], asked["signal"])
                continue
            report, nursery = reports.pop(), os.getpid()
            try:
                pid = os.fork()
            except OSError as exc:  # no process or memory more: those that are there are not to end for it
                os.close(report)
                _say(channel, {"refused": exc.errno or errno.EAGAIN})
                continue
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for descriptor in (woken, wake):
                    os.close(descriptor)
                channel.close()
                arguments: list[str] = asked["start"]
                os.environ[PRIVATE_FOLDER] = asked["folder"]
                _settle(nursery, asked["name"], report, asked.get("socket"))
                return arguments
            os.close(report)
            children.add(pid)
            _say(channel, {"started": pid})


def _say(channel: socket.socket, what: dict[str, int]) -> None:
    channel.sendall(orjson.dumps(what) + b"\n")


def _reap(channel: socket.socket, children: set[int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        children.discard(pid)
        _say(channel, {"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _settle(nursery: int, name: str, report: int, metrics: str | None) -> None:
    """Become a process of its own, which ends with the nursery."""
    os.setsid()
    os.environ[REPORT_FD] = str(report)
    os.environ[AMONG_OTHERS] = name
    if metrics is not None:
        os.environ[METRICS_SOCKET] = metrics
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_NAME, f"cdc-{name}".encode(), 0, 0, 0)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != nursery:
        os._exit(_NO_PARENT)


def main(descriptor: int) -> None:
    """Load, serve, and in a child be `cdc`."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # for the member to hear
        signal.signal(number, signal.SIG_IGN)
    preload()
    gc.collect()
    gc.freeze()  # what is loaded stays shared with the children
    channel = socket.socket(fileno=descriptor)
    _say(channel, {"ready": os.getpid()})
    arguments = serve(channel)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # SIGHUP stays ignored until `cdc run` hears it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.unfreeze()
    importlib.import_module("cdc.cli.main").main(arguments)


if __name__ == "__main__":
    main(int(sys.argv[1]))
