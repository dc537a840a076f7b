"""Finds and exchanges a table's indexes: folders beside a link that names the live one."""

from __future__ import annotations

import fcntl
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cdc.model.errors import OperatorError


@contextmanager
def reached(link: Path, done: str = "written") -> Iterator[None]:
    """Raise OperatorError, with the folder's name, where the disk or the engine does not do it.

    The engine raises ValueError for all that fails.
    """
    try:
        yield
    except (OSError, ValueError) as exc:
        raise unreached(link, exc, done) from exc


def unreached(link: Path, exc: Exception, done: str = "written") -> OperatorError:
    """Return the error of an index that the disk or the engine does not read or write."""
    said = exc.strerror if isinstance(exc, OSError) and exc.strerror else type(exc).__name__
    return OperatorError(
        f"the index in {link} cannot be {done} ({said})",
        hint="is there room on its disk, and may this user use it? If files of it are gone, move the folder away: it "
        "is filled again from the topics",
    )


def live_index(link: Path) -> Path:
    """Return the folder of the live index."""
    if not link.is_symlink():  # created by a release without links
        folder = link.rename(new_folder(link))
        point_link(link, folder)
    return link.resolve()


def previous_link(link: Path) -> Path:
    """Return the link to the previous index."""
    return link.with_name(f"{link.name}.previous")


def new_folder(link: Path) -> Path:
    """Return a new name for an index beside the link."""
    return link.with_name(f"{link.name}.{uuid.uuid4().hex}")


def index_folders(link: Path) -> list[Path]:
    """Return the folders of a table's indexes, also those without a link."""
    folder = link.parent.resolve()
    return [path for path in folder.iterdir() if re.fullmatch(re.escape(link.name) + r"\.[0-9a-f]{32}", path.name)]


def point_link(link: Path, folder: Path) -> None:
    """Point the link to the folder beside it, atomically."""
    unfinished = link.with_name(f"{link.name}.link")
    unfinished.unlink(missing_ok=True)
    unfinished.symlink_to(folder.name)
    unfinished.replace(link)


def write_durably(file: Path, text: str) -> None:
    """Replace a file, atomically and durably."""
    unfinished = file.with_name(f"{file.name}.new")
    with unfinished.open("w") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
    unfinished.replace(file)


@contextmanager
def locked(link: Path) -> Iterator[None]:
    """Lock the table's links and folders against other processes."""
    with link.with_name(f"{link.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
