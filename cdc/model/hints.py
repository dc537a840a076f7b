"""Puts a command's own files in place of what hints call them, so that what is shown can be pasted. Pure.

What finds a fault knows no files: its hint says ``cdc status CONNECTOR.yaml``, ``APPLY.yaml`` or ``VIEWS.yaml``. What
shows a hint passes it through here: errors, logs, reports, the page. And commands that several hints give.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

CONNECTOR: Final = "CONNECTOR.yaml"
APPLY: Final = "APPLY.yaml"
VIEWS: Final = "VIEWS.yaml"
_READ_AGAIN: Final = re.compile(rf"cdc snapshot start {re.escape(CONNECTOR)}[^;]*")


def pasteable(hint: str, files: Mapping[str, Path | str]) -> str:
    """Return a hint with a command's own files in place of what hints call them: ``CONNECTOR.yaml``.

    What stands in place of a text of the hint as a text, and not as a file, is put there as it is.
    """
    if not files:
        return hint
    shown = {name: of if isinstance(of, str) else shlex.quote(str(of)) for name, of in files.items()}
    return re.sub("|".join(map(re.escape, shown)), lambda found: shown[found[0]], hint)


def of_fleet(options: Iterable[str]) -> dict[str, str]:
    """Return what `pasteable` puts in place of a fleet's commands: the same with the options that say which fleet."""
    given = "".join(f" {shlex.quote(option)}" for option in options)
    commands = [f"cdc fleet {verb}" for verb in ("add", "list", "remove", "restart", "run", "status")]
    return {command: f"{command}{given}" for command in commands} if given else {}


def without_topics(hint: str | None, again: str, *, of_gap: bool) -> str | None:
    """Return a hint for a connector without topics: no command reads rows again there, but `again` says what does."""
    return again if of_gap else hint and _READ_AGAIN.sub(lambda _: again, hint)


def of_table(command: str, table: str) -> str:
    """Return a command for one table, whose name may have what a shell takes for its own."""
    return f"{command} --table {shlex.quote(table)}"


def rebuild(table: str) -> str:
    """Return the command that makes a table's copies again, beside those that are there."""
    return of_table(f"cdc rebuild {APPLY}", table)


def configure(servers: str, topic: str, settings: str) -> str:
    """Return the command that gives a topic settings."""
    return (
        f"kafka-configs.sh --bootstrap-server {servers} --alter --entity-type topics --entity-name {topic} "
        f"--add-config {settings}"
    )


def grant(
    servers: str, options: Mapping[str, str], operations: Iterable[str], *topics: str, prefixed: bool = False
) -> str:
    """Return the command that gives a client's user rights on topics, or on all that begin so.

    Operations are named as ``DescribeConfigs``. A user who does not log in by name is called NAME.
    """
    user = shlex.quote(f"User:{options.get('sasl.username', 'NAME')}")
    asked = " ".join(f"--operation {operation}" for operation in operations)
    of = " ".join(f"--topic {shlex.quote(topic)}" for topic in topics)
    pattern = " --resource-pattern-type prefixed" if prefixed else ""
    return (
        f"kafka-acls.sh --bootstrap-server {servers} --add --allow-principal {user} {asked} {of}{pattern}"
        "  # or take away the DENY that is in its way"
    )


def in_hints(found: Any, files: Mapping[str, Path | str]) -> Any:  # noqa: ANN401 - JSON
    """Return what a command shows with its files in each ``hint``, once: a file may be called as hints call it."""
    if isinstance(found, list):
        return [in_hints(each, files) for each in found]
    if not isinstance(found, dict):
        return found
    return {
        key: pasteable(value, files) if key == "hint" and isinstance(value, str) else in_hints(value, files)
        for key, value in found.items()
    }
