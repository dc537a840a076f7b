"""Finds Java before anything that needs it is started."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

from cdc.model.errors import OperatorError

_NEEDED = 17
_HINT = "apt-get install openjdk-17-jre-headless  # or set JAVA_HOME"


@functools.cache
def java() -> Path:
    """Find the Java to run with: ``$JAVA_HOME``'s, else the path's. Raises OperatorError below 17 or without one."""
    home = os.environ.get("JAVA_HOME")
    program = Path(home) / "bin" / "java" if home else shutil.which("java")
    if program is None or not os.access(program, os.X_OK):
        found = f"$JAVA_HOME is {home}, which has no bin/java" if home else "there is no java on the path"
        msg = f"Java {_NEEDED} or newer is needed, {found}"
        raise OperatorError(msg, hint=_HINT)
    said = java_says(Path(program))
    version = java_major(said)
    if version is None or version < _NEEDED:
        first_line = said.partition("\n")[0]
        msg = f"Java {_NEEDED} or newer is needed, {program} is: {first_line}"
        raise OperatorError(msg, hint=_HINT)
    return Path(program)


@functools.cache
def java_says(program: Path) -> str:
    """Return what ``java -version`` prints; once, since a JVM is started for it."""
    answer = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    return answer.stderr + answer.stdout or f"exit code {answer.returncode}"


def java_major(output: str) -> int | None:
    """Read the major version from what ``java -version`` prints: 8 for "1.8.0_402", 17 for "17.0.15"."""
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(found[1]) if found else None


def console_logging(level: str, *, logger: str = "%c{1}") -> str:
    """Return settings of Log4j 2 by which a program writes to its standard output; `logger` is a pattern of it."""
    return (
        "appender.out.type=Console\nappender.out.name=out\nappender.out.layout.type=PatternLayout\n"
        f"appender.out.layout.pattern=%d %p {logger} %m%n\n"
        f"rootLogger.level={level}\nrootLogger.appenderRef.out.ref=out\n"
    )
