"""Becomes a child's program once the kernel is to end it with its member; run as a script before the program.

    with_member.py MEMBER_PID ARGV...

A script of its own, standard library only: a program with threads must not run Python code between fork and exec. Linux
ends the child when the *thread* that has forked it ends, so children are started by a member's main thread.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_CANNOT_EXEC = 127


def main(argv: list[str]) -> None:
    """Turn into the program; the member may have ended before the kernel was asked."""
    member, *command = argv
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it has loaded what hears it: it is for its member to pass on
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != int(member):
            sys.exit(_CANNOT_EXEC)
    os.execv(command[0], command)  # noqa: S606 - that is what this script is for


if __name__ == "__main__":
    main(sys.argv[1:])
