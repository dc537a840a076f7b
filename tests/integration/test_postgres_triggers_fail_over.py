"""PostgreSQL by triggers, on a standby that was promoted before it had all that was published."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cdc.capture.control.signals import Command
from cdc.config.findings import Level
from cdc.model.errors import GapError
from cdc.testing import Faults, Killed
from connectors.triggers import check
from tests.conftest import Database
from tests.integration import trigger_laws as laws
from tests.integration.postgres_shop import ORDERS, PostgresShop
from tests.integration.test_verdicts import Primary, serving

BEHIND = "database behind the position"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks and commands come at once."""
    laws.at_once(monkeypatch)


@pytest.fixture(params=[pytest.param(16, marks=pytest.mark.full), 18])
def primary(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Primary]:
    with serving(Primary(tmp_path / "primary", request.param)) as made:
        yield made


@contextmanager
def copied(primary: Primary, folder: Path) -> Iterator[Primary]:
    """As a standby has it that is behind from now on."""
    primary.server.stop()
    with serving(primary.copy(folder)) as standby:
        primary.server.start()
        yield standby


def moved(shop: PostgresShop, database: Database) -> None:
    shop.database, shop.login = database, database.url


def refused_until_the_gap_is_closed(shop: PostgresShop) -> None:
    """However much the server has written since."""
    shop.do(
        "CREATE TABLE other (n int)", *["INSERT INTO other VALUES (1)"] * 60, "UPDATE orders SET n = 5 WHERE id = 4"
    )
    with pytest.raises(GapError, match=BEHIND):
        shop.run()
    findings = check.check(shop.config, shop.state()).findings
    assert any(of.level is Level.ERROR and BEHIND in of.what for of in findings)
    shop.ask(Command(after_gap=True, tables=()))
    shop.run()
    assert shop.fold() == shop.rows()


def test_the_last_in_number_is_not_the_last_that_was_committed(primary: Primary, tmp_path: Path) -> None:
    """The standby has the one with the greatest number, but not one that was committed later."""
    shop = PostgresShop(primary.database(), ORDERS, "INSERT INTO orders SELECT n, 'a' FROM generate_series(1, 4) n")
    shop.run()
    shop.do("BEGIN; UPDATE orders SET n = 7 WHERE id = 1; DELETE FROM orders WHERE id = 2; PREPARE TRANSACTION 'late'")
    shop.do("UPDATE orders SET n = 8 WHERE id = 3")
    with copied(primary, tmp_path / "standby") as standby:
        shop.do("COMMIT PREPARED 'late'")
        shop.run()
        moved(shop, standby.promoted())
        shop.do("ROLLBACK PREPARED 'late'")
        refused_until_the_gap_is_closed(shop)


@pytest.mark.full("a false alarm would show in each fail-over")
def test_a_standby_that_is_behind_by_nothing_that_was_published(primary: Primary, tmp_path: Path) -> None:
    """An idle connector draws numbers: those that were drawn last have not reached the standby."""
    shop = PostgresShop(primary.database(), ORDERS, "INSERT INTO orders SELECT n, 'a' FROM generate_series(1, 4) n")
    shop.run()
    shop.do("UPDATE orders SET n = 1")
    shop.run()
    primary.server.kill()  # as by the log, the sequence is some numbers ahead
    with serving(primary.copy(tmp_path / "standby")) as standby:
        primary.server.start()
        before = shop.state().commit
        shop.run()
        assert shop.state().commit > before
        moved(shop, standby.promoted())
        shop.do("UPDATE orders SET n = 2", "DELETE FROM orders WHERE id = 3")
        shop.run()
        assert shop.fold() == shop.rows()


@pytest.mark.parametrize("behind", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_first_snapshot_that_is_half_read(primary: Primary, tmp_path: Path, behind: bool) -> None:
    """Rows were read that the standby never had; one that had them all goes on with the rest."""
    shop = PostgresShop(primary.database(), ORDERS, "INSERT INTO orders SELECT n, 'a' FROM generate_series(1, 20) n")

    def some_more() -> None:
        with pytest.raises(Killed):
            shop.run(Faults(("sink.commit", 2), error=Killed))

    def written() -> None:
        shop.do("UPDATE orders SET status = 'late'")

    some_more()
    some_more()
    if not behind:
        written()
        some_more()
    with copied(primary, tmp_path / "standby") as standby:
        if behind:
            written()
            some_more()
        assert any(row["status"] == "late" for row in shop.fold())
        moved(shop, standby.promoted())
        if behind:
            refused_until_the_gap_is_closed(shop)
        else:
            shop.do("DELETE FROM orders WHERE id < 3")
            shop.run()
            assert shop.fold() == shop.rows()
