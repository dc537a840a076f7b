"""etcd into a file, by a process that is killed again and again while others write and the server is killed too."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.etcd_cluster import Etcd
from tests.integration import in_process
from tests.integration.etcd_shop import EtcdShop
from tests.integration.test_etcd_clusters import started

KILLS = 7
WRITERS = 3
TABLES = ("orders", "items", "quiet")


def write(url: str, seed: int, over: threading.Event) -> None:
    """Transactions over several prefixes, ranges deleted, leases that end."""
    at, etcd = random.Random(seed), Etcd(url, root="/")
    while not over.wait(0.002):
        with suppress(OSError):  # the server is away
            names = {f"{at.choice(TABLES[:2])}/{at.randint(1, 40)}" for _ in range(at.randint(1, 6))}
            etcd.commit({name: None if at.random() < 0.3 else b"%d" % at.randint(0, 10**9) for name in names})
            if at.random() < 0.02:
                etcd.delete_all(f"orders/{at.randint(1, 9)}")
            if at.random() < 0.05:
                lease = str(etcd.call("lease/grant", {"TTL": 600})["ID"])
                etcd.put(f"items/{at.randint(1, 40)}", b"leased", lease=lease)
                etcd.call("lease/revoke", {"ID": lease})
            if at.random() < 0.02:
                etcd.put("elsewhere", b"x")


@pytest.mark.full
@pytest.mark.timeout(300)
def test_killed_in_the_middle_while_others_write(tmp_path: Path) -> None:
    """Each change is in the file once, and all of them are, each transaction in one piece; the fold is the range."""
    server = started("etcd", tmp_path / "etcd")
    shop = EtcdShop(server.url, tables=[f"s.{name}" for name in TABLES], root="/")
    for number in range(30):
        shop.etcd.put(f"orders/{number}", b"old")
    out, file = tmp_path / "changes.jsonl", tmp_path / "connector.yaml"
    tables = [{"table": f"s.{name}", "prefix": f"/{name}/", "text": True} for name in TABLES]
    source = {"type": "etcd", "url": server.url, "tables": tables}
    file.write_text(json.dumps({"name": "c", "source": source, "sink": {"type": "jsonl", "path": str(out)}}))
    over = threading.Event()
    writers = [threading.Thread(target=write, args=(server.url, seed, over)) for seed in range(WRITERS)]
    for writer in writers:
        writer.start()
    words = [sys.executable, "-m", "cdc", "run", str(file)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    try:
        for kills in range(KILLS):
            running = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL)
            size = out.stat().st_size if out.exists() else 0
            while running.poll() is None and (not out.exists() or out.stat().st_size <= size + 5_000 * kills):
                over.wait(0.01)
            if kills % 3 == 1:
                server.kill()
                server.start()
            running.kill()
            running.wait()
    finally:
        over.set()
        for writer in writers:
            writer.join()
    try:
        done = in_process.cdc(["run", str(file), "--until-caught-up"], {**os.environ})
        assert done.returncode == 0, done.stderr
        there = {row["key"]: row for name in TABLES for row in shop.there(name)}
    finally:
        server.stop()
    rows: dict[str, Any] = {}
    told: list[tuple[int, str]] = []
    for event in map(json.loads, out.read_bytes().splitlines()):
        key = (event["after"] or event["before"])["key"]
        if event["op"] != "r":
            told.append((event["source"]["revision"], key))
        rows[key] = event["after"]
    assert len(told) == len(set(told))
    assert [revision for revision, _ in told] == sorted(revision for revision, _ in told)
    assert {key: row for key, row in rows.items() if row is not None} == there
