"""README.md is true: its blocks are run in order, in a clean folder, and give what it says they give."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import psycopg2
import pytest

from cdc.cli.main import cdc

HOME = Path(__file__).parents[2]
README = HOME / "README.md"
PAGES = sorted([README, *HOME.glob("docs/**/*.md")])
MARK = "CDC_TEST_README"
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED_FILE = re.compile(r"`([\w.-]+\.yaml)`")
MAKE = re.compile(r"\bmake ([a-z-]+)")
VOLATILE = {"ts_ms", "txId", "lsn", "position", "id"}
"""Of `source`, `transaction` and the event itself: what differs from run to run."""


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    said: str
    """The paragraph before it."""


def blocks(page: str) -> list[Block]:
    found, end = [], 0
    for fence in FENCED.finditer(page):
        found.append(Block(fence[1], fence[2], page[end : fence.start()].strip().rpartition("\n\n")[2]))
        end = fence.end()
    return found


class Shell:
    """One user's shell: commands one by one, each with what the ones before it have exported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "here"
        self.folder.mkdir()
        self._exported = folder / "environment"
        self._mark = f"{MARK}={folder}"
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, MARK: str(folder)}
        for name in ("SHOP_POSTGRES_URL", "KAFKA"):
            self.environment.pop(name, None)

    def run(self, command: str, timeout_s: float = 120) -> str:
        """Stdout. The command must end with 0 and say nothing of errors."""
        script = f"set -euo pipefail\n{command}\nenv -0 > '{self._exported}'\n"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr, f"{command}:\n{done.stderr}"
        assert "error: " not in done.stderr, f"{command}:\n{done.stderr}"
        pairs = (pair.partition("=") for pair in self._exported.read_text().split("\0") if pair)
        self.environment = {name: value for name, _, value in pairs}
        return done.stdout

    def sql(self, statements: str) -> None:
        """In the database of the URL that the page has the user export."""
        with closing(psycopg2.connect(self.environment["SHOP_POSTGRES_URL"])) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(statements)

    def processes(self) -> list[str]:
        """Command lines of all processes that come from here."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdecimal() and self._mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:2000])
            except OSError:
                continue  # it has just ended, or is another user's
        return found


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.run("cdc dev down")


def commands(block: str) -> list[str]:
    """Lines, those that end with a backslash joined with the next."""
    return [line for line in block.replace("\\\n", " ").splitlines() if line.strip()]


def masked(value: Any, name: str = "", *, inside: bool = False) -> Any:
    """The event with the digits of its positions, times and ids replaced, their kind and form kept."""
    if isinstance(value, dict):
        open_ = name not in ("after", "before")
        return {key: masked(item, key, inside=open_) for key, item in value.items()}
    if inside and name in VOLATILE:
        return type(value).__name__, re.sub(r"[0-9a-f]+", "0", str(value))
    return value


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="/proc is missing: it tells processes")
def test_every_block_does_what_the_page_says(shell: Shell) -> None:
    """The statement and the event at the top are tried where a reader would: when the connector runs."""
    page = blocks(README.read_text())
    (update, event), rest = page[:2], page[2:]
    assert (update.language, event.language) == ("sql", "json")
    printed: dict[str, str] = {}
    for block in rest:
        if block.language == "yaml":
            (name,) = set(NAMED_FILE.findall(block.said))
            (shell.folder / name).write_text(block.text)
        elif block.language == "sql":
            shell.sql(block.text)
        elif block.language == "python":
            name = "library" if "import cdc" in block.text else "look"
            (shell.folder / f"{name}.py").write_text(block.text)
            printed[name] = shell.run(f"python3 {name}.py")
        else:
            assert block.language == "sh"
            for command in commands(block.text):
                if target := MAKE.match(command):
                    subprocess.run(["make", "-n", target[1]], cwd=HOME, capture_output=True, check=True)
                else:
                    printed[command.partition("#")[0].strip()] = shell.run(command)
        if "cdc run connector.yaml --until-caught-up" in printed and "update" not in printed:
            shell.sql(update.text)
            shell.run("cdc run connector.yaml --until-caught-up")
            printed["update"] = shell.run("cdc tail connector.yaml --from-beginning --max 3")

    read = [json.loads(line) for line in printed["cdc tail connector.yaml --from-beginning --max 2"].splitlines()]
    assert sorted((r["value"]["op"], r["value"]["after"]["customer"]) for r in read) == [
        ("r", "George Bailey"),
        ("r", "Sally Thomas"),
    ]
    assert "(not running)" in printed["cdc status connector.yaml"]
    assert "2 rows" in printed["cdc status connector.yaml"]

    records = [json.loads(line) for line in printed["update"].splitlines()]
    (record,) = (r for r in records if r["value"]["op"] == "u")
    shown = json.loads(event.text)
    assert f"topic `{record['topic']}`" in event.said
    assert f"key `{json.dumps(record['key'], separators=(',', ':'))}`" in event.said
    assert json.dumps(masked(record["value"])) == json.dumps(masked(shown)), "same keys, same order, same values"
    for one in (shown, record["value"]):  # positions and ids that belong together
        xid, _, commit = one["transaction"]["id"].partition(":")
        assert (one["source"]["txId"], one["source"]["position"][9:25]) == (int(xid), f"{int(commit):016x}")

    applied = printed["cdc apply apply.yaml --once"]
    assert re.search(r"public\.orders +warehouse +3 +2 ", applied), applied
    assert re.search(r"public\.orders +search +3 +2 ", applied), applied
    rows = re.findall(r"\|(\d+)\| *(\w+)\| *([\d.]+)\|", printed["look"])
    assert rows == [("1001", "paid", "99.90"), ("1002", "new", "12.50")]
    assert "Sally Thomas" in printed["look"]
    assert "George Bailey" not in printed["look"], "the search finds her alone"
    assert "'id': 1001, 'customer': 'Sally Thomas', 'status': 'paid'" in printed["library"]

    assert printed["cdc view run views.yaml --once"].startswith("2 events in 1 steps")
    assert re.search(r"turnover +2 +0 +0 +0", printed["cdc view verify views.yaml"])

    running = shell.processes()
    assert any("postgres" in each for each in running)
    assert any("kafka" in each for each in running)
    assert "`cdc dev down`" in README.read_text()
    shell.run("cdc dev down")
    assert shell.processes() == []


def test_make_targets_that_are_named_exist() -> None:
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", README.read_text(), re.MULTILINE))
    assert named
    for target in named:
        subprocess.run(["make", "-n", target], cwd=HOME, capture_output=True, check=True)


def spoken() -> list[str]:
    """Every `cdc …` of the page, in blocks and in text."""
    page = README.read_text()
    inline = re.findall(r"`(cdc [^`]+)`", FENCED.sub("", page))
    lines = [
        line.partition("#")[0] for block in blocks(page) if block.language == "sh" for line in commands(block.text)
    ]
    fenced = [found for line in lines for found in re.findall(r"(?:^|\()(cdc [^|)\"]+)", line)]
    return [*inline, *fenced]


def test_every_command_and_option_that_is_named_exists() -> None:
    found = spoken()
    assert len(found) >= 8
    for words in found:
        command: click.Command = cdc
        context = click.Context(command, info_name="cdc", **command.context_settings)  # click keeps the help option
        for word in words.split()[1:]:
            if isinstance(command, click.Group):
                inner = command.get_command(context, word)
                assert inner is not None, f"{words}: there is no {word}"
                command, context = inner, click.Context(inner, info_name=word, parent=context)
            elif word.startswith("-"):
                assert word in command.get_help(context).replace(",", " ").split(), f"{words}: there is no {word}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(HOME)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", page.read_text())):
        if not re.match(r"[a-z]+:", target):
            path = (page.parent / target.partition("#")[0]).resolve()
            assert path.exists(), f"{page.relative_to(HOME)}: {target}"


def test_paths_that_are_named_exist() -> None:
    """`cdc/capture/pipeline.py`, `docs/adr/`: where things are."""
    named = re.findall(r"`((?:cdc|connectors|sinks|snapshot|spark_apply|docs)/[\w/.-]*)`", README.read_text())
    assert named
    assert [path for path in named if not (HOME / path).exists()] == []
