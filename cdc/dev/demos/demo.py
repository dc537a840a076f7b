"""Runs the demo's parts: servers, shop, connector and apply job, each started once and ended together."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from cdc.config import registry
from cdc.config.config import ApplyConfig, ConnectorConfig, load_apply, load_connector
from cdc.dev.demos.shop import TABLES, Difference, Shop, difference
from cdc.dev.servers.process import Launch, Server
from cdc.dev.stack import DevServers
from cdc.machine.child_processes import SAFE_PATH
from cdc.machine.flag import Flag
from cdc.model.errors import BugError, CdcError

WAREHOUSE: Final = TABLES
SEARCHED: Final = ("public.orders", "public.products")
_SPARK_ENDS_WITHIN_S: Final = 10.0

_CONNECTOR: Final = """\
name: shop
source:
  type: postgres
  url: ${{SHOP_POSTGRES_URL}}
  tables:
    - public.customers
    - public.orders
    - public.products*
    - public.posts
    - public.follows
    - public.searches
    - public.clicks
    - public.saved_searches
sink:
  type: kafka
  bootstrap_servers: {kafka}
  topic_prefix: shop
  partitions: 3
  idle_position_s: 1
"""

_APPLY: Final = """\
name: shop-warehouse
source: {{bootstrap_servers: "{kafka}", topic_prefix: shop}}
stores:
  warehouse: {{type: iceberg, path: {folder}/warehouse}}
  search:    {{type: tantivy, path: {folder}/search}}
tables:
  public.customers:        {{stores: [warehouse]}}
  public.orders:           {{stores: [warehouse, search]}}
  public.products:         {{stores: [warehouse, search]}}
  public.products_on_hand: {{stores: [warehouse]}}
checkpoint: {folder}/checkpoints
"""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compares one table: rows in the source, and how each copy differs."""

    table: str
    rows: int
    topic: Difference
    warehouse: Difference
    search: Difference | None

    @property
    def differences(self) -> int:
        return self.topic.count + self.warehouse.count + (self.search.count if self.search else 0)


class Demo:
    """Controls everything that runs. Made by `running`; nothing outlives it."""

    def __init__(self, folder: Path, postgres_url: str, kafka: str) -> None:
        self.folder = folder
        self.kafka = kafka
        self.shop = Shop(postgres_url)
        os.environ["SHOP_POSTGRES_URL"] = postgres_url  # what the connector's file refers to
        self.connector_file, self.apply_file = folder / "connector.yaml", folder / "apply.yaml"
        self.connector_file.write_text(_CONNECTOR.format(kafka=kafka))
        self.apply_file.write_text(_APPLY.format(kafka=kafka, folder=folder))
        self.connector_config: ConnectorConfig = load_connector(self.connector_file)
        self.apply_config: ApplyConfig = load_apply(self.apply_file)
        self.connector = Server("connector", folder / "connector", self._launch)
        self._apply_stop, self._topics_made = threading.Event(), threading.Event()
        self._first_batch = threading.Event()
        self._apply: threading.Thread | None = None
        self._apply_error: BaseException | None = None
        self._spark: Any = None
        self._stores: dict[str, Any] = {}
        self._targets: dict[str, Any] = {}

    def _launch(self, _folder: Path) -> Launch:
        """Prepare `cdc run connector.yaml`, as a user would start it."""
        argv = (sys.executable, *SAFE_PATH, "-m", "cdc", "run", str(self.connector_file))
        return Launch(argv, ready=self._streaming, url="-", ready_within_s=60)

    def _streaming(self, _pid: int) -> bool:
        try:
            state = self.standing()
        except CdcError:
            return False  # its topics are not made yet
        return state is not None and state.phase == "stream"

    def standing(self) -> Any:  # noqa: ANN401 - cdc.model.state.State | None, by way of the registry
        """Read the connector's committed state."""
        read = registry.part("sinks.topics.records.positions:read_standing")
        return read(self.connector_config.sink, self.connector_config.name).state

    def start_connector(self) -> None:
        """Start `cdc run connector.yaml`; return when its snapshot is done."""
        self.connector.start()
        self._topics_made.set()

    def start_apply(self, tell: Tell) -> None:
        """Start `cdc apply apply.yaml`, on a thread so that its Spark session can be asked too.

        Spark starts at once; the job itself waits for the connector's topics.
        """

        def note(line: str) -> None:
            if line.startswith("batch"):
                self._first_batch.set()
            tell(line)

        def follow() -> None:
            try:
                registry.part("spark_apply.spark.session:open_session")(self.apply_config.name, self.apply_config.spark)
                while not self._apply_stop.is_set() and not self._topics_made.wait(0.2):
                    pass
                if self._apply_stop.is_set():
                    return
                run(self.apply_config, once=False, progress=note, stop=self._apply_stop)
            except BaseException as exc:  # noqa: BLE001 - raised again where the demo waits
                self._apply_error = exc

        run = registry.part("spark_apply.job.job:run_apply")
        self._apply = threading.Thread(target=follow, name="apply", daemon=True)
        self._apply.start()

    def await_first_batch(self) -> None:
        """Return when the apply job has written its first batch, the snapshot. Raises what it failed with."""
        while not self._first_batch.wait(0.2):
            self.check_apply()

    def check_apply(self) -> None:
        """Raise what the apply job failed with."""
        if self._apply_error is not None:
            raise self._apply_error

    def finish_apply(self) -> None:
        """End the following job after its batch, then apply all that is left."""
        self.stop_apply()
        self.check_apply()
        asked = Flag()
        registry.part("spark_apply.job.job:run_apply")(self.apply_config, once=True, stop=asked)
        if asked.is_set():  # the job takes Ctrl-C for its own end; here it is the demo's
            raise KeyboardInterrupt

    def stop_apply(self) -> None:
        self._apply_stop.set()
        if self._apply is not None:
            self._apply.join(60)

    def catch_up(self) -> None:
        """Return when the connector has committed all that the shop has."""
        connection = registry.part("connectors.postgres.lag:standing")
        deadline = time.monotonic() + 60
        begun_at: int | None = None
        while time.monotonic() < deadline:
            state = self.standing()
            found = connection(self.connector_config, state)
            end = found["log_end_number"]
            begun_at = end if begun_at is None else begun_at
            if state.commit >= begun_at:
                return
            time.sleep(0.2)
        raise BugError(f"the connector did not catch up in 60 s; the end of {self.connector.log} may say why")

    def event(self, table: str, key: bytes) -> dict[str, Any] | None:
        """Read the newest event of a key from its topic."""
        last = None
        for message in self._messages(table):
            if message.key() == key and message.value() is not None:
                last = orjson.loads(message.value())
        return last

    def events(self) -> int:
        """Count the records in the tables' topics."""
        return sum(1 for table in TABLES for _ in self._messages(table))

    def _messages(self, table: str) -> Iterator[Any]:
        schema, _, name = table.partition(".")
        topic = registry.part("sinks.topics.names:table_topic")("shop", schema, name)
        yield from registry.part("sinks.topics.records.read_back:read_to_end")(self.kafka, {}, topic, "read_committed")

    def copy(self, store: str, table: str) -> dict[str, dict[str, Any]]:
        """Read the whole contents of a derived store's table."""
        self._open()
        contents: dict[str, dict[str, Any]] = registry.part("spark_apply.verify.contents:contents")(
            self._stores[store], self._targets[table]
        )
        return contents

    def search(self, table: str, words: str) -> list[dict[str, Any]]:
        """Find the documents of the index that match."""
        self._open()
        return [orjson.loads(d) for d in self._stores["search"].search(table, words, limit=5)]

    def change_warehouse(self, statement: str) -> None:
        """Run a statement of Spark SQL, as anyone with access could: the job does not know of it."""
        self._open()
        self._spark.sql(statement)

    def take_from_index(self, table: str, key: str) -> None:
        """Take a document out of the index behind the job's back; the job must not run, an index has one writer."""
        self._open()
        index = registry.part("tantivy:Index").open(str(self._stores["search"].folder(self._targets[table])))  # type: ignore[attr-defined]
        writer = index.writer(num_threads=1)
        writer.delete_documents_by_term("_cdc_key", key)
        writer.commit()
        writer.wait_merging_threads()

    def _open(self) -> None:
        if self._stores:
            return
        self._spark, self._stores = registry.part("spark_apply.model.store:connect")(self.apply_config)
        versions = registry.part("spark_apply.events.kafka.schema_topic:schema_versions")(self.apply_config.source)
        self._targets = {
            table: registry.part("spark_apply.model.target_table:target")(versions[table], {}) for table in TABLES
        }

    def compare(self) -> list[Comparison]:
        """Compare whole rows of the source with topic, warehouse and index."""
        return [self._compare(table) for table in TABLES]

    def _compare(self, table: str) -> Comparison:
        source = self.shop.contents(table)
        expected = registry.part("spark_apply.verify.contents:expected")
        folded: dict[str, dict[str, Any]] = {}
        self._open()
        for message in self._messages(table):
            key = message.key().decode()
            if message.value() is None:
                folded.pop(key, None)
                continue
            event = orjson.loads(message.value())
            if event["after"] is not None:
                version = event["source"]["schema_version"]
                folded[key] = expected(self._targets[table], event["after"], version)
        return Comparison(
            table,
            len(source),
            difference(source, folded),
            difference(source, self.copy("warehouse", table)),
            difference(source, self.copy("search", table)) if table in SEARCHED else None,
        )


def _end_spark() -> None:
    """Stop Spark, and wait for its JVM, which would write for some more seconds to folders that are removed."""
    context = registry.part("pyspark:SparkContext")
    gateway: Any = getattr(context, "_gateway", None)
    if gateway is None:
        return
    active: Any = getattr(context, "_active_spark_context", None)
    if active is not None:
        active.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the sign for it to end
    try:
        gateway.proc.wait(_SPARK_ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()


@contextmanager
def running(folder: Path, tell: Tell) -> Iterator[Demo]:
    """Start the servers and prepare the demo's parts; on exit, also by Ctrl-C, end everything."""
    with ExitStack() as stack:
        servers = DevServers(folder / "servers", servers=("postgres18", "kafka"))
        stack.callback(servers.stop)
        urls = servers.start(progress=tell)
        demo = Demo(folder, str(urls.postgres_url), str(urls.kafka))
        stack.callback(demo.shop.close)
        stack.callback(_end_spark)
        stack.callback(demo.stop_apply)
        stack.callback(demo.connector.stop)
        yield demo
