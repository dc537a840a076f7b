"""promtool takes the rules, and each alert fires in its scenario and nowhere else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from cdc.config.apply_config import ApplySource, ApplyTable, StoreConfig
from cdc.config.config import ApplyConfig
from cdc.dev.debs import Package, fetch
from cdc.model.errors import CdcError
from cdc.telemetry.apply_meter import ApplyMeter
from cdc.telemetry.connector_meter import ConnectorMeter
from cdc.telemetry.json_log import Place
from tests.conftest import unavailable
from tests.unit.test_metrics_server import CONFIG, committed

JOB = ApplyConfig(
    name="copies",
    source=ApplySource(bootstrap_servers="k:1", topic_prefix="shop"),
    stores={"search": StoreConfig(type="tantivy", path="x")},
    tables={"public.*": ApplyTable(stores=("search",))},
    checkpoint="x",
)
PROMETHEUS = Path(__file__).parents[2] / "deploy" / "prometheus"


@pytest.fixture(scope="module")
def promtool() -> tuple[str, ...]:
    """Debian's, unpacked into the cache; nothing is installed."""
    try:
        return fetch(Package("prometheus", "bookworm")).command("usr/bin/promtool")
    except CdcError as exc:
        unavailable("promtool", exc.message)
        raise


@pytest.mark.parametrize(
    "words",
    [("check", "rules", "alerts.yml", "debezium-names.yml"), ("test", "rules", "alerts_test.yml")],
    ids=lambda words: words[0],
)
def test_promtool(promtool: tuple[str, ...], words: tuple[str, ...]) -> None:
    done = subprocess.run([*promtool, *words], cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_has_nothing_to_say_of_what_is_shown(promtool: tuple[str, ...]) -> None:
    """Names, types, units and helps, as its linter has them."""
    connector, job = ConnectorMeter(CONFIG), ApplyMeter(JOB, Place())
    committed(connector, transactions=[1])
    job.applied(took_s=1, position="0", rows={("search", "public.t", "written"): 1})
    for meter in (connector, job):
        shown = generate_latest(meter.figures.registry)
        done = subprocess.run([*promtool, "check", "metrics"], input=shown, capture_output=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_promtool_finds_a_rule_that_does_not_parse(promtool: tuple[str, ...], tmp_path: Path) -> None:
    """A check that cannot fail proves nothing."""
    wrong = tmp_path / "alerts.yml"
    wrong.write_text((PROMETHEUS / "alerts.yml").read_text().replace("> 120", ">> 120"))
    done = subprocess.run([*promtool, "check", "rules", str(wrong)], capture_output=True, text=True, check=False)
    assert done.returncode != 0
