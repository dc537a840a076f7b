"""Alert rules, Debezium's names and the dashboard name only what is shown; each alert has its scenario and its page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from cdc.cli.main import cdc
from cdc.telemetry import dashboard, metrics

HOME = Path(__file__).parents[2]
PROMETHEUS, GRAFANA = HOME / "deploy" / "prometheus", HOME / "deploy" / "grafana" / "cdc.json"
PARTS = {"histogram": ("_bucket", "_sum", "_count")}
KNOWN = {metric.name + part: metric for metric in metrics.EVERY for part in PARTS.get(metric.kind, ("",))}


def _rules(file: str) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = yaml.safe_load((PROMETHEUS / file).read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


ALERTS = _rules("alerts.yml")


def _expressions() -> Iterator[tuple[str, str]]:
    for file in ("alerts.yml", "debezium-names.yml"):
        for rule in _rules(file):
            yield str(rule.get("alert", rule.get("record"))), rule["expr"]
    for row in dashboard.ROWS:
        for panel in row.panels:
            yield from ((panel.title, expression) for expression, _ in panel.queries)


@pytest.mark.parametrize(("what", "expression"), list(_expressions()), ids=lambda value: value[:40])
def test_an_expression_names_metrics_and_labels_that_exist(what: str, expression: str) -> None:
    names = set(re.findall(r"\bcdc_\w+", expression))
    assert names - KNOWN.keys() == set(), what
    assert names or expression.startswith("up{")
    for name, selector in re.findall(r"\b(cdc_\w+)\{([^}]*)\}", expression):
        metric = KNOWN[name]
        labels = set(re.findall(r"(\w+)=~?\"", selector))
        own = {"connector", "instance", "job", *metric.labels, *({"le"} if metric.kind == "histogram" else ())}
        own |= {"apply"} if metric in metrics.APPLY else set()
        own |= {"fleet", "member"} if metric in metrics.FLEET else set()
        assert labels - own == set(), what


def test_states_that_are_named_exist() -> None:
    from cdc.fleet.roster import Reason
    from cdc.model.meter import JobState, RunState

    slot = {"reserved", "extended", "unreserved", "lost"}
    known = {state.value for state in (*RunState, *JobState)} | slot | {"waiting", "reading", "done"} | {*Reason}
    for _, expression in _expressions():
        for told in re.findall(r"state=~?\"([^\"]*)\"", expression):
            assert set(told.split("|")) <= known, expression


@pytest.mark.parametrize("alert", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_has_its_scenario_and_its_page(alert: dict[str, Any]) -> None:
    """A heading in the runbook with cause, look-up and commands; a scenario in which it fires."""
    name = alert["alert"]
    assert alert["labels"]["severity"] in ("warning", "critical")
    assert alert["annotations"]["summary"]
    assert alert["annotations"]["runbook"] == f"docs/operations.md#{name.lower()}"
    page = (HOME / "docs" / "operations.md").read_text()
    _, heading, section = page.partition(f"\n#### {name}\n")
    assert heading, f"docs/operations.md has no heading #### {name}"
    section = section.partition("\n#")[0]
    for part in ("- Cause: ", "- Look: ", "- Do: "):
        assert part in section, f"{name}: {part}"
    assert "`cdc " in section or "```sql" in section or "`SELECT" in section, f"{name}: no command"
    tests = yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text())["tests"]
    (scenario,) = (test for test in tests if test["name"] == name)
    fires = [rule for rule in scenario["alert_rule_test"] if rule["exp_alerts"]]
    assert [rule["alertname"] for rule in fires] == [name]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda rule: rule["alert"])
def test_commands_of_a_page_exist(alert: dict[str, Any]) -> None:
    """As the command line takes them: command, options, and as many arguments."""
    page = (HOME / "docs" / "operations.md").read_text()
    section = page.partition(f"\n#### {alert['alert']}\n")[2].partition("\n#")[0]
    for told in re.findall(r"`cdc ([^`]*\.yaml[^`]*)`", section):
        words, group = told.split(), cdc
        context = click.Context(group, **group.context_settings)  # click keeps the help option that it makes first
        while isinstance(group, click.Group):
            found = group.get_command(context, words.pop(0))
            assert found is not None, told
            group = found  # type: ignore[assignment]
        group.make_context(told, words, parent=context)


def test_each_alert_has_a_scenario_in_which_its_commands_are_run() -> None:
    """That all of a section's commands are run there, the scenario itself sees to."""
    scenarios = (HOME / "tests" / "stores" / "test_runbook.py").read_text()
    assert [alert["alert"] for alert in ALERTS if f'"{alert["alert"]}"' not in scenarios] == []


def test_every_metric_of_weight_is_on_the_dashboard() -> None:
    """What alerts look at can be seen."""
    shown = {
        name for row in dashboard.ROWS for p in row.panels for e, _ in p.queries for name in re.findall(r"cdc_\w+", e)
    }
    alerted = {name for rule in ALERTS for name in re.findall(r"\bcdc_\w+", rule["expr"])}
    unseen = {"cdc_connector_moved_timestamp_seconds", "cdc_sink_commit_timestamp_seconds", "cdc_source_reachable",
              "cdc_sink_pending_records", "cdc_slot_state", "cdc_apply_state",
              "cdc_connector_retries_total"}  # fmt: skip
    assert alerted - shown == unseen


def test_the_dashboard_is_what_the_command_writes() -> None:
    """python -m cdc.telemetry.dashboard > deploy/grafana/cdc.json"""
    made = dashboard.dashboard()
    assert json.loads(GRAFANA.read_text()) == made
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in made["panels"]]
    assert len(set(places)) == len(places), "no panel lies on another"
    assert len({p["id"] for p in made["panels"]}) == len(made["panels"])
