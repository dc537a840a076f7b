"""What is done to an apply job is kept in an audit of its own, on a real broker."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from cdc.cli.main import cdc
from cdc.cli.noted import noted
from cdc.cli.repairing import offsets
from cdc.config.config import load_apply
from cdc.model.errors import OperatorError
from cdc.offsets.exported import Exported
from sinks.topics.names import job_audit_topic


def _run(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(cdc, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return 1, "", str(done.exception)
    return done.exit_code, done.stdout, done.stderr


def _fail_half_way(file: Path) -> None:
    with noted(load_apply(file), "rebuild") as about:
        about["copies"] = ["public.orders in copy"]
        raise OperatorError("the store is full", hint="df -h")


def test_who_has_moved_a_jobs_offsets_is_kept(
    kafka: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was known of a connector alone. What changes nothing is not noted; what fails half-way is."""
    file, exported = tmp_path / "apply.yaml", tmp_path / "offsets.json"
    job = {
        "name": prefix,  # as its connector may be called
        "source": {"bootstrap_servers": kafka, "topic_prefix": prefix},
        "stores": {"copy": {"type": "tantivy", "path": str(tmp_path / "copy")}},
        "tables": {"public.orders": {"stores": ["copy"]}},
        "checkpoint": str(tmp_path / "checkpoints"),
    }
    file.write_text(json.dumps(job))
    ends = {f"{prefix}.public.orders": {"0": 5}}
    exported.write_text(
        json.dumps(Exported(of="apply", name=prefix, prefix=prefix, at_ms=1_700_000_000_000, ends=ends).to_json())
    )
    assert "there is no audit of" in _run("audit", file)[2]
    kinds = iter(["same", "repeat", "skip"])

    def import_offsets(*_: Any, **__: Any) -> SimpleNamespace:
        return SimpleNamespace(kind=next(kinds), means="…", kept=None)

    monkeypatch.setattr(offsets, "_job", lambda: SimpleNamespace(import_offsets=import_offsets))
    for _ in range(3):
        assert _run("offsets", "import", file, exported, "--force")[0] == 0
    with pytest.raises(OperatorError):
        _fail_half_way(file)
    producer = Producer({"bootstrap.servers": kafka, "log_level": 0})
    for foreign in (b"{", b'{"at_ms": "x", "about": []}', b"[]"):
        producer.produce(job_audit_topic(prefix, prefix), foreign)
    assert producer.flush(30) == 0

    code, out, err = _run("audit", file, "--json")
    assert (code, err.count("is none of ours")) == (0, 3)
    acts = json.loads(out)["acts"]
    moved = {"exported_at": "2023-11-14T22:13:20+00:00", "topics": 1}
    assert [(act["action"], act["about"], act["outcome"]) for act in acts] == [
        ("offsets import", {"meant": "repeat", **moved}, "done"),
        ("offsets import", {"meant": "skip", **moved}, "done"),
        ("rebuild", {"copies": ["public.orders in copy"]}, "ended with OperatorError"),
    ]
    assert all("@" in act["by"] and act["at_ms"] >= act["asked_ms"] for act in acts)
    assert "meant: repeat" in _run("audit", file)[1]
