"""A person's data, by every way that a row takes, then `cdc erase`: no file of a server, store, state or log has them.

Each place is looked at before, too: one that never had the datum would prove nothing by not having it.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from cdc.dev.servers import kafka
from cdc.dev.servers.process import Server
from tests.canary import files_with
from tests.conftest import Database, _database
from tests.integration import in_process
from tests.integration.connector import Connector
from tests.integration.running import Running, eventually, standing
from tests.integration.test_metrics import Scraper, free_port

PLAIN, MASKED, EXCLUDED, HASHED = (f"{kind}{uuid.uuid4().hex[:12]}" for kind in ("pln", "msk", "exc", "hsh"))
"""Short: what lakes note of a column are the first 16, or 32, letters of its smallest and greatest values."""
OTHER = "a row that stays"
TABLE = "public.people"
pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread

STORES: Final = ("iceberg", "delta", "tantivy", "opensearch", "postgres")
DELTA_LOG: Final = "Delta's log"
LAKES: Final = ("iceberg", "delta")
STORE_OF_SERVER: Final = {"opensearch": "opensearch", "postgres": "postgres"}


class Copies:
    """The jobs that copy the table; their stores, output and state are below one folder."""

    def __init__(self, folder: Path, name: str, broker: str, opensearch: str, target: Database) -> None:
        self.folder, self.target = folder, target
        self.printed, self.state = folder / "printed", folder / "state"
        self.printed.mkdir()
        source = {"bootstrap_servers": broker, "topic_prefix": name}
        places: dict[str, dict[str, Any]] = {
            **{store: {"path": str(folder / store)} for store in ("iceberg", "delta", "tantivy")},
            "opensearch": {"url": opensearch, "options": {"shards": 1, "replicas": 0}},
            "postgres": {"url": target.url},
        }
        self.apply = folder / "apply.yaml"
        self.apply.write_text(
            json.dumps(
                {
                    "name": f"{name}-copies",
                    "source": source,
                    "stores": {store: {"type": store, **place} for store, place in places.items()},
                    "tables": {TABLE: {"stores": list(STORES)}},
                    "checkpoint": str(folder / "checkpoint"),
                }
            )
        )
        self.views = folder / "views.yaml"
        self.views.write_text(
            json.dumps(
                {
                    "name": f"{name}-views",
                    "source": source,
                    "state": str(self.state),
                    "views": {
                        "named": {"sql": f"SELECT id, name FROM {TABLE}", "key": ["id"]},
                        "names": {"sql": f"SELECT name, count(*) AS n FROM {TABLE} GROUP BY name", "key": ["name"]},
                    },
                }
            )
        )

    def cdc(self, *words: object) -> str:
        done = in_process.cdc([*map(str, words)], os.environ)
        self.keep(str(words[0]), done.stdout + done.stderr)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def keep(self, what: str, text: str) -> None:
        """Among what was printed, which is looked through."""
        (self.printed / f"{len([*self.printed.iterdir()])}-{what}").write_text(text)

    def follow(self) -> None:
        self.cdc("apply", self.apply, "--once")
        self.cdc("view", "run", self.views, "--once")


def _place(parts: tuple[str, ...], prefix: str) -> str:
    """Which place a file belongs to: a topic, a copy in a folder, a server."""
    if "_delta_log" in parts:
        return DELTA_LOG
    for part in parts:
        if part.startswith(f"{prefix}."):
            return f"topic {part.rpartition('-')[0]}"
        if part in {*STORES, "state", "checkpoint", "printed"}:
            return part
    return STORE_OF_SERVER.get(parts[0].rstrip("0123456789"), "/".join(parts))


def _until_all_is_there(connector: Connector) -> None:
    _epoch, end, _number = connector.here("token", "FILE").stdout.strip().partition(":")[2].split(".")
    eventually(lambda: standing(connector).commit >= int(end, 16), f"all up to {end} is published")


@pytest.fixture
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One that looks for old segments every second, not every five minutes."""
    more = "log.retention.check.interval.ms=1000\n"
    server = Server("kafka", tmp_path_factory.mktemp("broker"), partial(kafka.prepare, more=more))
    server.start()
    yield server.url
    server.kill()


@pytest.fixture
def target(servers: Callable[[str], str]) -> Iterator[Database]:
    """On another server than the source's, whose own files have the person."""
    with contextmanager(_database)(servers("postgres16")) as database:
        yield database


@pytest.fixture
def copies(tmp_path: Path, prefix: str, broker: str, opensearch: str, target: Database) -> Copies:
    return Copies(tmp_path, prefix, broker, opensearch, target)


@pytest.mark.usefixtures("apply_spark")
@pytest.mark.full  # test_a_deleted_row_goes_from_the_files
@pytest.mark.timeout(1200)
def test_no_file_has_an_erased_person(
    postgres18: Database, broker: str, copies: Copies, prefix: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Snapshot, stream, values that are left out, key change, dead letter, quarantine, log, views, every store."""
    everything = tmp_path_factory.getbasetemp()
    port = free_port()
    connector = Connector(
        copies.folder, prefix, postgres18.url, broker, [TABLE],
        source={"columns": {TABLE: {
            "exclude": ["secret"], "mask": ["email"], "hash": {"columns": ["phone"], "salt": "pepper"},
        }}},
        sink={
            "log": {"tables": [TABLE], "retention": "forever"},
            "topic_config": {"file.delete.delay.ms": "500", "max.message.bytes": "1000000"},
            "options": {"compression.type": "none"},
        },
        on_error="dead_letter",
        metrics={"listen": f"127.0.0.1:{port}"},
    )  # fmt: skip
    hidden = f"'{MASKED}', '{EXCLUDED}', '{HASHED}'"
    large = "(SELECT string_agg(md5((n * {0})::text), '') FROM generate_series(1, {0}) n)"
    postgres18.execute(
        "CREATE TABLE people (id int PRIMARY KEY, name text, email text, secret text, phone text,"
        " note text, share numeric(10,2))",
        "ALTER TABLE people ALTER note SET STORAGE EXTERNAL",
        f"INSERT INTO people VALUES (1, '{OTHER}', 'a', 'b', 'c', 'd', 1),"
        f" (2, '{PLAIN} as it was read', {hidden}, '{PLAIN}' || {large.format(300)}, 1)",
    )
    with Running(connector, "--verbose") as run:
        run.await_following()
        for statement in (
            f"UPDATE people SET name = '{PLAIN} changed'",  # the log leaves the note out
            "UPDATE people SET share = 'NaN' WHERE id = 2",  # no decimal of a store takes it
            f"UPDATE people SET note = '{PLAIN}' || {large.format(40_000)} WHERE id = 2",  # above the broker's limit
            f"UPDATE people SET note = '{PLAIN}' || {large.format(301)} WHERE id = 2",
            f"UPDATE people SET name = '{OTHER}' WHERE id = 1",
        ):
            postgres18.execute(statement)
        _until_all_is_there(connector)
        copies.follow()
        assert json.loads(copies.cdc("quarantine", "list", copies.apply, "--json"))["entries"]
        postgres18.execute(
            "UPDATE people SET id = 7, share = 2 WHERE id = 2", f"UPDATE people SET email = '{MASKED} too' WHERE id = 7"
        )
        _until_all_is_there(connector)
        copies.keep("metrics", Scraper(port).ask("/metrics")[1])
        copies.keep("status", connector.here("status", "FILE", "--json").stdout)
        run.process.terminate()
        assert run.ended() == 0
        copies.keep("run", run.stderr)
    copies.follow()

    def places(secret: str) -> set[str]:
        """Of what is neither the source's own nor the log of the PostgreSQL that has a copy."""
        copies.target.execute("CHECKPOINT")
        found = (file.relative_to(everything) for file in files_with(everything, secret))
        return {
            _place(file.parts, prefix)
            for file in found
            if not file.parts[0].startswith("postgres18") and "pg_wal" not in file.parts
        }

    topics = (TABLE, f"log.{TABLE}", f"dead-letter-{prefix}", "view.named", "view.names")
    assert places(PLAIN) == {
        *(f"topic {prefix}.{of}" for of in topics),
        *STORES,
        DELTA_LOG,
        "state",
    }
    for secret in (MASKED, EXCLUDED, HASHED):
        assert places(secret) == set()

    postgres18.execute("DELETE FROM people WHERE id = 7")
    connector.catch_up()
    copies.follow()
    asked = ("--apply", str(copies.apply), "--cut-logs", "--wait", "--json")
    said = [connector.here("erase", "FILE", "--table", TABLE, "--key", key, *asked) for key in ("2", "7")]
    for done in said:
        assert done.returncode == 1, done.stderr  # the tombstone
        copies.keep("erase", done.stdout + done.stderr)
    verdicts = {place["place"]: place for place in json.loads(said[-1].stdout)["places"]}
    assert verdicts[f"topic {prefix}.{TABLE}"]["verdict"] == "gone"
    assert verdicts[f"topic {prefix}.view.named"]["verdict"] == "gone"
    for store in STORES:
        told = verdicts[f"store {store} of {prefix}-copies ({store})"]
        advice = "24 hours more" if store in LAKES else "cdc rebuild"
        assert (told["verdict"], advice in told["what"]) == ("cannot be proved", True), told
    assert "state is made again" in verdicts["state of the jobs that compute views"]["what"]
    copies.cdc("rebuild", copies.apply, "--table", TABLE)
    copies.cdc("rebuild", copies.apply, "--table", TABLE)
    job = json.loads(copies.apply.read_text())
    for lake in LAKES:
        job["stores"][lake]["options"] = {"upkeep": {"files": 1, "keep_hours": 0, "orphan_hours": 0}}
    copies.apply.write_text(json.dumps(job))
    postgres18.execute("INSERT INTO people VALUES (3, 'after it', 'a', 'b', 'c')")
    connector.catch_up()
    copies.cdc("apply", copies.apply, "--once")
    shutil.rmtree(copies.state)
    copies.cdc("view", "run", copies.views, "--once")
    in_a_key = f"topic {prefix}.view.names"

    def only_there(secret: str) -> bool:
        return places(secret) <= {in_a_key, DELTA_LOG}

    assert "until Delta's next checkpoint" in verdicts[f"store delta of {prefix}-copies (delta)"]["what"]
    assert verdicts[f"tombstones in {in_a_key}"]["verdict"] == "cannot be proved"
    for secret in (PLAIN, MASKED, EXCLUDED, HASHED):
        eventually(partial(only_there, secret), f"{secret} is in no other file", within_s=60)
    assert places(OTHER) >= {f"topic {prefix}.{TABLE}", *STORES, "state"}
    assert sorted(row["name"] for row in connector.fold(TABLE).values()) == sorted([OTHER, "after it"])
