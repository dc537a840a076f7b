"""Starts one server process so that it never outlives its owner; run as a script before the server's program.

    launch.py PID_FILE OWNER_PID|0 STOP_SIGNAL USER|- ARGV...

With an owner the script stays as a watchman: when the owner is gone, by SIGKILL too, it stops the server. (Linux's
``PR_SET_PDEATHSIG`` alone would not do: it fires when the *thread* that forked ends, and servers are started from
threads.) Without an owner the script becomes the server. The pid file is written before the server's first
instruction, so a caller killed at any moment leaves a true one behind.

A script of its own, standard library only: a threaded program must not run Python code between fork and exec.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_KEEPCAPS = 8
_PR_SET_SECUREBITS = 28
_SECBIT_NO_SETUID_FIXUP = 1 << 2
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_CAP_VERSION_3 = 0x20080522
_CAP_DAC_OVERRIDE = 1
_WATCH_EVERY_S = 0.1
_STOP_WITHIN_S = 5.0
_CANNOT_EXEC = 127


def started_at(pid: int) -> str | None:
    """Read when the process started: a text that differs for a later one of the same pid; None if it has ended."""
    if sys.platform == "darwin":
        state, _, start = _ps("-o", "stat=,lstart=", "-p", str(pid)).strip().partition(" ")
        return start.strip() if start and not state.startswith("Z") else None
    fields = _stat(pid)
    return fields[19] if fields and fields[0] not in "ZX" else None


def family(pid: int) -> list[int]:
    """List the process and its descendants, parents first: a PostgreSQL backend is in a process group of its own."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    found = [pid]
    for member in found:
        found.extend(children.get(member, ()))
    return found


def send(pids: list[int], signum: int) -> None:
    """Signal all that still exist."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signum)


def _parents() -> list[tuple[int, int]]:
    if sys.platform == "darwin":
        lines = _ps("-A", "-o", "pid=,ppid=").splitlines()
        return [(int(pid), int(parent)) for pid, parent in (line.split() for line in lines)]
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]  # slim images have no ps
    return [(pid, int(fields[1])) for pid in pids if (fields := _stat(pid))]


def _stat(pid: int) -> list[str]:
    """Read the fields of proc_pid_stat(5) from the third on, the state; empty if there is no such process."""
    with suppress(FileNotFoundError, ProcessLookupError):
        # The second is the program's name in parentheses and may hold anything: count from the last parenthesis.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def _ps(*arguments: str) -> str:
    return subprocess.run(["/bin/ps", *arguments], capture_output=True, text=True, check=False).stdout


def main(argv: list[str]) -> int:
    """Become the server, or watch over it until it or its owner has ended."""
    pid_file, owner, stop_signal, user, *command = argv
    if owner == "0":
        _become(Path(pid_file), user, command)
    watchman = os.getpid()
    server = os.fork()
    if server == 0:
        _die_with(watchman)
        _become(Path(pid_file), user, command, watchman=watchman)
    return _watch(server, int(owner), int(stop_signal))


def _become(pid_file: Path, user: str, command: list[str], *, watchman: int | None = None) -> None:
    """Write the pid file, change the user if asked, and turn into the server; does not return."""
    try:
        unfinished = pid_file.with_suffix(".new")
        unfinished.write_text(f"{os.getpid()} {started_at(os.getpid())}\n")
        unfinished.replace(pid_file)
        if user != "-":
            _change_user(user)
            if watchman is not None:
                _die_with(watchman)  # a change of user clears it
        os.execv(command[0], command)  # noqa: S606 - that is what this script is for
    except OSError as exc:
        sys.stderr.write(f"cannot start {command[0]}: {exc}\n")
        sys.stderr.flush()
    os._exit(_CANNOT_EXEC)


def _die_with(watchman: int) -> None:
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != watchman:
        os._exit(_CANNOT_EXEC)


def _watch(server: int, owner: int, stop_signal: int) -> int:
    os.closerange(0, 3)
    # A dead server is reaped at once: PostgreSQL takes a zombie's lock file for that of a live server.
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    deadline: float | None = None
    while True:
        done, status = os.waitpid(server, os.WNOHANG)
        if done:
            return max(os.waitstatus_to_exitcode(status), 0)
        if os.getppid() != owner:
            if deadline is None:
                deadline = time.monotonic() + _STOP_WITHIN_S
                send([server], stop_signal)
                send(family(server), signal.SIGCONT)  # a paused server could not stop
            elif time.monotonic() > deadline:
                send(family(server), signal.SIGKILL)
        if select.select([woken], [], [], _WATCH_EVERY_S)[0]:
            os.read(woken, 4096)  # a pause, too, is told by SIGCHLD


def _change_user(name: str) -> None:
    """Go on as ``name``, for servers that refuse root, but still able to enter root's folders if the kernel allows.

    A checkout below ``/root`` or pytest's ``tmp_path`` cannot be entered by any other user, so the capability to pass
    permission checks is kept (capabilities(7), "ambient"); it is less than what root, who asked, had. The secure bit is
    for access(2), which else judges without capabilities: Java believes it.
    """
    entry = pwd.getpwnam(name)
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is not None:
        libc.prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP, 0, 0, 0)
        libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    if libc is not None:
        mask = 1 << _CAP_DAC_OVERRIDE
        header = (ctypes.c_uint32 * 2)(_CAP_VERSION_3, 0)
        sets = (ctypes.c_uint32 * 6)(mask, mask, mask)  # effective, permitted, inheritable; then their high words
        if libc.capset(header, sets) == 0:
            libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_OVERRIDE, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
