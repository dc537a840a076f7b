"""A connector without Kafka: its YAML file, and `cdc` on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.integration import in_process
from tests.integration.nudges import nudged

HOME = Path(__file__).parents[2]


class FileConnector:
    """`out` is the file that it writes."""

    def __init__(self, folder: Path, source: dict[str, Any], out: str, name: str, **sink: Any) -> None:
        self.url, self.out, self.file = source["url"], folder / out, folder / f"{name}.yaml"
        config = {"name": name, "source": source, "sink": {"path": str(self.out), **sink}}
        self.file.write_text(json.dumps(config))  # JSON is YAML
        self.environment = {**os.environ}

    def cdc(self, *words: str) -> subprocess.CompletedProcess[str]:
        with nudged(self.url):
            return in_process.cdc([str(self.file) if word == "FILE" else word for word in words], self.environment)

    def catch_up(self) -> None:
        done = self.cdc("run", "FILE", "--until-caught-up")
        assert done.returncode == 0, done.stderr

    def start(self, **more: Any) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "cdc", "run", str(self.file)]
        environment = {**self.environment, "PYTHONPATH": str(HOME)}
        how = {"stderr": subprocess.DEVNULL, "text": True, **more}
        return subprocess.Popen(words, cwd=HOME, env=environment, **how)
