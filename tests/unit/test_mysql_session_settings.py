"""Settings of a session are set, read back, and named where they did not take."""

from __future__ import annotations

import re

import pytest

from cdc.model.errors import OperatorError
from connectors.mysql.session_settings import LEAST, SETTINGS, assigned, settle, still


class Server:
    """Has some settings, and takes what it is told, but for what it ignores, refuses or resets."""

    def __init__(self, **has: str) -> None:
        self.has = {**dict.fromkeys(("sql_select_limit", "autocommit", "sql_mode", "time_zone"), "?"), **has}
        self.has.setdefault("character_set_results", "latin1")
        self.ignores: set[str] = set()
        self.refuses: set[str] = set()
        self.brings: dict[str, dict[str, str]] = {}
        self.said: list[str] = []

    def ask(self, statement: str, parameters: tuple[str, ...]) -> list[list[str]]:
        self.said.append(statement)
        if statement.startswith("SHOW"):
            return [[name.title(), value] for name, value in self.has.items() if name in parameters]
        told = dict(re.findall(r"(\w+) = '?([^',]*)'?", statement.removeprefix("SET SESSION ")))
        if told.keys() & self.refuses:
            raise OperatorError("you need SUPER")
        for name, value in told.items():
            if name not in self.ignores:
                self.has[name] = value
                self.has |= self.brings.get(name, {})
        return []


def test_what_a_server_knows_is_set_as_it_is_listed() -> None:
    server = Server(max_statement_time="0.500000", wait_timeout="28800", max_sort_length="1024")
    settle(server.ask, "h:1", {"wait_timeout": "120"})
    assert server.has == {name: SETTINGS[name] for name in server.has} | {"wait_timeout": "120"}
    before = len(server.said)
    settle(server.ask, "h:1", {"wait_timeout": "120"})
    assert len(server.said) == before + 1  # nothing differs: nothing is set
    server.has |= {"autocommit": "1", "max_statement_time": "0.000000", "time_zone": "+00:00"}
    settle(server.ask, "h:1", {"wait_timeout": "120"})
    assert len(server.said) == before + 2


def test_a_setting_that_brings_another_with_it_is_followed_by_that() -> None:
    server = Server(character_set_connection="latin1", collation_connection="utf8mb4_general_ci")
    server.brings["character_set_connection"] = {"collation_connection": "utf8mb4_0900_ai_ci"}
    settle(server.ask, "h:1", {})
    assert server.has["collation_connection"] == SETTINGS["collation_connection"]


def test_what_did_not_take_is_named_with_what_was_asked_for_and_found() -> None:
    server = Server(wait_timeout="5", max_sort_length="4")
    server.ignores.add("wait_timeout")
    server.refuses.add("max_sort_length")
    with pytest.raises(OperatorError) as caught:
        settle(server.ask, "h:1", {})
    assert "h:1" in caught.value.message
    assert "wait_timeout = 5 where 86400 was asked for" in caught.value.message
    assert "max_sort_length = 4 where 9216 was asked for (you need SUPER)" in caught.value.message
    assert "time_zone" not in caught.value.message  # it took, though another was refused beside it
    assert "SET GLOBAL" in str(caught.value.hint)


def test_a_server_that_does_not_tell_is_not_believed() -> None:
    with pytest.raises(OperatorError, match="sql_mode, which is not told"):
        settle(lambda *_: [], "h:1", {})


def test_another_session_in_its_place_is_noticed() -> None:
    def ask(statement: str, _: tuple[str, ...]) -> list[list[str]]:
        return [[has[name] for name in re.findall(r"@@SESSION\.(\w+)", statement)]]

    has = {**SETTINGS, "autocommit": "1"}
    still(ask, "h:1")
    has["time_zone"] = "SYSTEM"
    with pytest.raises(OperatorError, match=r"time_zone = SYSTEM where \+00:00 was set"):
        still(ask, "h:1")


def test_values_longer_than_a_packet_are_not_read_as_null() -> None:
    server = Server(max_allowed_packet=str(LEAST["max_allowed_packet"] - 1))
    with pytest.raises(OperatorError, match="max_allowed_packet is"):
        settle(server.ask, "h:1", {})
    server.has["max_allowed_packet"] = str(LEAST["max_allowed_packet"])
    settle(server.ask, "h:1", {})


def test_no_setting_is_left_to_the_server_and_none_breaks_out_of_its_quotes() -> None:
    """DEFAULT is the server's own value, but where it names a value itself."""
    assert [name for name, value in SETTINGS.items() if value == "DEFAULT"] == ["system_versioning_asof"]
    assert all(re.fullmatch(r"\w+ = (\w+|'[\w+:-]*')", assigned(name, value)) for name, value in SETTINGS.items())
