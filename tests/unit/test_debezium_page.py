"""The page for who comes from Debezium: its keys and commands exist, and an option in a file leads there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import pytest
import yaml

from cdc.cli import reference
from cdc.config import config
from cdc.config.config import load_connector
from cdc.model.errors import ConfigError
from sinks.topics.names import signal_topic
from tests.unit.test_docs import CONNECTOR, DOCS, KEYS

PAGE: Final = (DOCS / "debezium.md").read_text(encoding="utf-8")
ROWS: Final = re.findall(r"^\| (`.*?) \| (.*) \|$", PAGE, re.MULTILINE)
OPTIONS: Final = sorted({of for row, _ in ROWS for of in re.findall(r"`([a-z]\w*(?:\.\w+)+)(?=[:`])", row)})
MINIMAL: Final = {
    "name": "shop",
    "source": {"type": "postgres", "url": "postgresql://u@h/d", "tables": ["public.t"]},
    "sink": {"bootstrap_servers": "h:1"},
}


def test_what_takes_their_place_exists() -> None:
    keys = {key.path for page, key in KEYS if page == CONNECTOR}
    commands = {words for words, _, _ in reference.commands()}
    given = " ".join(here for _, here in ROWS)
    named = set(re.findall(r"`((?:source|sink|snapshot)\.[a-z_.<>\[\]]+|on_error|name)(?=[:`])", given))
    assert len(named) > 25
    assert named - keys == set()
    for written in re.findall(r"`cdc ([a-z ]+)", PAGE):
        assert any(f"{words} ".startswith(f"{written.strip()} ") for words in commands), written
    assert f"`{signal_topic('<prefix>', '<connector>')}`" in given


def test_it_has_the_options_that_are_used() -> None:
    assert len(OPTIONS) > 100


@pytest.mark.parametrize("section", ["", "source", "sink", "snapshot"])
def test_an_option_in_a_file_leads_there(section: str, tmp_path: Path) -> None:
    """Or its hint says at once what to write; it is never taken for a key of ours that is spelt a little like it."""
    file = tmp_path / "connector.yaml"
    for option in set(OPTIONS) - config.DEBEZIUM_NAMES.keys():
        whole = json.loads(json.dumps(MINIMAL))
        (whole.setdefault(section, {}) if section else whole)[option] = "x"
        file.write_text(yaml.safe_dump(whole))
        with pytest.raises(ConfigError) as refused:
            load_connector(file)
        hint = refused.value.hint or ""
        assert "docs/debezium.md" in hint or not hint.startswith(("did you mean", "allowed")), (option, hint)
