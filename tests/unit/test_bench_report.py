"""Figures of runs: what is divided by what, and which runs a median is of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.capture.databases import transactions
from bench.measure.meter import cpu_ticks
from bench.measure.report import COLD, OURS, PEER, RAW, Run, as_json, medians, ratios, table

RUN = Run(
    case="MySQL, the log",
    program=OURS,
    events=1_000,
    seconds=0.5,
    capture_cpu_s=0.02,
    database_cpu_s=0.001,
    broker_cpu_s=0.004,
    first_s=1.0,
    whole_s=1.5,
    peak_mb=80,
    event_bytes=400,
    repeated=0,
)
PEERS = replace(RUN, program=PEER, seconds=1.0, capture_cpu_s=0.04)
ALONE = Run(
    case=RUN.case,
    program=RAW,
    events=1_000,
    seconds=0.01,
    capture_cpu_s=0.01,
    database_cpu_s=0.0,
    broker_cpu_s=None,
)


def test_a_figure_is_of_the_events_behind_the_first() -> None:
    assert RUN.rate == 2_000
    assert RUN.us(RUN.capture_cpu_s) == pytest.approx(20)
    assert ALONE.us(ALONE.broker_cpu_s) is None


def test_medians_are_of_what_every_run_has() -> None:
    """A figure that is missing in one run is left out, not taken from the others."""
    runs = [RUN, replace(RUN, seconds=0.25), replace(RUN, seconds=1.0, peak_mb=None)]
    found = medians(runs)
    assert found["events_per_s"] == 2_000
    assert "peak_mb" not in found


def test_ratios_are_ours_by_the_peers() -> None:
    found = ratios({OURS: [RUN], PEER: [PEERS]})
    assert found["events_per_s"] == 2
    assert found["capture_us"] == pytest.approx(0.5)
    assert ratios({OURS: [RUN], RAW: [ALONE]}) == {}
    nothing = replace(PEERS, database_cpu_s=0.0)
    assert "database_us" not in ratios({OURS: [RUN], PEER: [nothing]})


def test_the_table_has_a_block_for_each_case() -> None:
    runs = [replace(RUN, program=COLD), PEERS, PEERS, ALONE, RUN, RUN, replace(RUN, case="another")]
    blocks = table(runs).split("\n\n")
    assert [block.splitlines()[0] for block in blocks] == ["MySQL, the log", "another"]
    lines = [line.split("  ")[1].strip() for line in blocks[0].splitlines()[3:]]
    assert lines == [OURS, PEER, f"{COLD} (1 run)", f"{RAW} (1 run)", f"{OURS} : {PEER}"]
    assert len({len(line) for line in blocks[0].splitlines()[2:]}) == 1


def test_json_holds_every_run() -> None:
    found = as_json([RUN, PEERS], {"cores": 2})
    assert found["cores"] == 2
    assert found["cases"][0]["medians"].keys() == {OURS, PEER}
    assert [run["program"] for run in found["runs"]] == [OURS, PEER]


def test_cpu_is_counted_behind_the_programs_name() -> None:
    """The name may hold spaces and parentheses; then state, ppid and eight fields before utime."""
    assert cpu_ticks("7 (a) b) c) S 1 7 7 0 -1 4194304 100 0 0 0 10 20 3 4 20 0 1 0 99") == 37
    assert cpu_ticks("") == 0


def test_transactions_cover_the_numbers_once() -> None:
    assert transactions(5, 250, 100) == [(5, 104), (105, 204), (205, 254)]
    assert transactions(1, 1, 100) == [(1, 1)]
