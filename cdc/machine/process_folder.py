"""A folder of a process in the place for temporary files, which nobody else can read.

A process that is killed leaves its folder behind; the next one of its kind removes it. A folder is locked for as long
as its process lives, so one that can be locked is nobody's. What cleans that place after some days, as systemd does,
leaves alone what is locked.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

_NEW_S: Final = 60.0
"""A folder that is younger may not be locked yet."""


class ProcessFolder:
    """Holds one; `kind` begins its name, and `mark` is a folder in it that tells it from what others have made."""

    def __init__(self, kind: str, mark: str) -> None:
        self.path: Final = Path(tempfile.mkdtemp(prefix=kind))
        self._mark: Final = mark
        self._lock: int | None = None
        self._own()
        remove_left(kind, mark)

    def _own(self) -> None:
        """Mark the folder, and lock it where the file system has locks."""
        if self._lock is not None:
            os.close(self._lock)
        self._lock = _locked(self.path)
        (self.path / self._mark).mkdir()

    def keep(self) -> None:
        """Make the folder again where it was cleaned away. Raises OSError where another user has it by now."""
        with suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
            self._own()
        if self.path.lstat().st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def remove_left(kind: str, mark: str) -> None:
    """Remove folders of this user's processes that are gone, with all that is in them."""
    for left in Path(tempfile.gettempdir()).glob(f"{kind}*/{mark}"):
        _remove(left.parent)


def _remove(left: Path) -> None:
    try:
        found = left.lstat()
        if found.st_uid != os.getuid() or left.is_symlink() or time.time() - found.st_mtime < _NEW_S:
            return
        lock = _locked(left)
        if lock is None:
            return
        try:
            shutil.rmtree(left, ignore_errors=True)
        finally:
            os.close(lock)
    except OSError:  # another process has removed it meanwhile
        return


def _locked(made: Path) -> int | None:
    """Lock a folder for as long as the process lives; None: it is another one's."""
    found = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(found)
        return None
    return found
