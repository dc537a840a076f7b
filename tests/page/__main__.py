"""Makes the screenshot of the documents: python -m tests.page docs/monitor.png."""

from __future__ import annotations

import sys
from typing import Any

from tests.page.browser import chromium
from tests.page.watched import HINT, connector, group, served, store, views

_GROUPS = [group("billing", "ok", 0, 0.0), group("mailer", "stopped", 81_204, 5_312.4, exact=False)]
_LOST: dict[str, Any] = {
    "slot": {"name": "cdc_stock", "wal_status": "lost", "active": False, "retained_wal_bytes": 0},
    "owner": None, "running": False, "standby": 0, "lag_seconds": 7_480.0, "lag_bytes": 11_400_000_000,
    "events_per_second": 0.0, "log_left_seconds": 0, "log_left": "the slot is lost",
    "problems": [{"level": "bad", "says": "slot cdc_stock is lost: log after the position is gone",
                  "hint": HINT.replace("shop", "stock")}],
}  # fmt: skip


def main(path: str) -> None:
    """Show what a day may bring: one well, one whose slot is lost, a store, views, two groups of consumers."""
    made = [
        connector("shop", consumers={"groups": _GROUPS, "failure": None, "no_commits": None}),
        connector("stock", "stopped", **_LOST),
        store("warehouse"),
        views("totals"),
    ]
    with served(made, commands=False) as address, chromium() as browser:
        page = browser.new_page(viewport={"width": 1240, "height": 900})
        page.goto(address)
        page.wait_for_selector("article[data-name=totals] canvas")
        page.wait_for_timeout(1500)
        page.screenshot(path=path, full_page=True)


if __name__ == "__main__":
    main(sys.argv[1])
