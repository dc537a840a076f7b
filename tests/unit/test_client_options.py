"""Options of Kafka's clients that cannot be: told before anything is begun, by the name that the file has."""

from __future__ import annotations

import pytest

from cdc.model.errors import ConfigError
from sinks.client.diagnosis import refuse_untrusted


@pytest.mark.parametrize(
    ("options", "name", "hint"),
    [
        ({"message.max.bytes": "100"}, "message.max.bytes", "message.max.bytes: from 1000 to 1000000000"),
        ({"linger.ms": "-5"}, "linger.ms", "linger.ms: from 0 to 900000"),
        ({"queue.buffering.max.ms": "-5"}, "queue.buffering.max.ms", "queue.buffering.max.ms: from 0"),
        ({"linger.ms": "abc"}, "linger.ms", "CONFIGURATION.md has the values of linger.ms"),
    ],
)
def test_a_value_that_an_option_cannot_have(options: dict[str, str], name: str, hint: str) -> None:
    """One outside its range passed `cdc check`, and a run ended as it read its position."""
    with pytest.raises(ConfigError, match=f"options: {name} has a value that it cannot have") as found:
        refuse_untrusted("127.0.0.1:1", options)
    assert hint in (found.value.hint or "")
