"""Changes that rounds have given are deleted some at a time, and each time goes on where the last one has ended."""

from __future__ import annotations

import json
import re

import pytest

from connectors.triggers.mysql import forgetting
from connectors.triggers.mysql.numbers import Numbers
from connectors.triggers.mysql.triggers import Names


class Database:
    """Answers the statements of `forget`, as rounds and one change table hold them."""

    def __init__(self, *rounds: range) -> None:
        self.changes = {number for one in rounds for number in one}
        self.rounds = {at: ('{"7": 1}', Numbers(one).text) for at, one in enumerate(rounds, 1)}

    def ask(self, statement: str, *parameters: object) -> list[list[str]]:
        match statement.split(maxsplit=1)[0], parameters:
            case "SELECT", (int(upto), int()):
                return [[str(at)] for at, (_, numbers) in self.rounds.items() if at < upto or (at == upto and numbers)]
            case "SELECT", (int(at),):
                return [list(self.rounds[at])]
            case "DELETE", (int(at),):
                del self.rounds[at]
            case "DELETE", ():
                self.changes -= {int(found) for found in re.findall(r"SELECT (\d+)", statement)}
            case "UPDATE", (int(at),):
                self.rounds[at] = ("{}", "")
            case "UPDATE", (str(numbers), int(at)):
                self.rounds[at] = (self.rounds[at][0], numbers)
            case _:
                raise AssertionError(statement)
        return []


def test_what_is_written_back_is_in_proportion_to_what_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a round whose numbers have gaps everywhere, as where two connectors write down the same rows."""
    monkeypatch.setattr(forgetting, "_AT_ONCE", 1)
    monkeypatch.setattr(forgetting, "_DELETING_S", -1.0)
    database = Database(range(100, 2_100, 2))
    times = 1
    while not forgetting.forget(database.ask, Names("shop"), 1, {7}):
        times += 1
    assert not database.changes
    assert times <= 150


@pytest.mark.parametrize("last_s", [0.0, 3600.0])
def test_a_round_of_any_size_is_forgotten(last_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """However little is deleted each time: of the row of a round is left what is still to be deleted."""
    monkeypatch.setattr(forgetting, "_AT_ONCE", 10)
    monkeypatch.setattr(forgetting, "_DELETING_S", last_s or -1.0)
    database = Database(range(100, 195), range(200, 210), range(300, 305))
    names = Names("shop")
    times = 1
    while not forgetting.forget(database.ask, names, 2, {7}):
        times += 1
        held = {
            n for _, text in database.rounds.values() for a, b in Numbers.parse(text).ranges() for n in range(a, b + 1)
        }
        assert held == database.changes, "who goes on reads no change that is gone as one that is there"
        assert times < 100
    assert database.changes == set(range(300, 305)), "what is not acknowledged"
    assert {at: json.loads(shapes) for at, (shapes, _) in database.rounds.items()} == {2: {}, 3: {"7": 1}}


def test_tables_share_a_statement() -> None:
    """And the commit of it; a server joins some sixty at most."""
    said = list[str]()

    def ask(statement: str, *parameters: object) -> list[list[str]]:
        said.append(statement)
        if not statement.startswith("SELECT"):
            return []
        shapes = {str(shape): 1 for shape in range(1, 121)}
        return [["1"]] if len(parameters) == 2 else [[json.dumps(shapes), Numbers(range(900)).text]]

    assert forgetting.forget(ask, Names("shop"), 1, set(range(1, 121)))
    deletes = [statement for statement in said if statement.startswith("DELETE")]
    assert [statement.count("JOIN") for statement in deletes] == [50, 50, 20]
