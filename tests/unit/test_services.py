"""A service of libpq's decides where a connection goes before it is decided whether that is another host."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.model.errors import ConfigError
from connectors.postgres.session import parameters, weakness

FILE = "[remote]\nhost=db.example\nport=5433\n\n[weak]\nhost=db.example\nsslmode=require\n\n[here]\nhost=localhost\n"


@pytest.fixture(autouse=True)
def _file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "services").write_text(FILE)
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))


def test_a_service_on_another_host_has_the_default_of_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    found = parameters("postgresql:///shop?service=remote", "t")
    assert (found["host"], found["port"], found["sslmode"]) == ("db.example", "5433", "verify-full")
    monkeypatch.setenv("PGSERVICE", "remote")
    assert parameters("postgresql:///shop", "t")["sslmode"] == "verify-full"
    assert "sslmode" not in parameters("postgresql://localhost/shop", "t")


def test_what_a_service_or_url_says_itself_stays() -> None:
    weak = parameters("postgresql:///shop?service=weak", "t")
    assert weak["sslmode"] == "require"
    assert weakness(weak) is not None
    assert "sslmode" not in parameters("postgresql:///shop?service=here", "t")
    assert parameters("postgresql://localhost,db.example/shop", "t")["sslmode"] == "verify-full"


def test_a_service_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="is in no service file"):
        parameters("postgresql:///shop?service=other", "t")
