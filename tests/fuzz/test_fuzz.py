"""Whatever bytes a parser is given, it reads them or refuses them as it says: the corpus, and a minute of new inputs.

`make fuzz` does the same guided by coverage and under sanitizers, for as long as it is asked to. An input it finds is
kept in `tests/fuzz/corpus/<target>/` and is tried here for ever.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import FULL
from tests.fuzz import build
from tests.fuzz.__main__ import CORPUS, INPUT_S, Settings, fuzz, missed
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS

SECONDS: Final = float(os.environ.get("CDC_FUZZ_SECONDS") or (3600 if FULL else 60))
"""For all targets together, the start of their processes included."""
_START_S: Final = 0.7
"""What the start of one takes."""


def test_each_target_has_a_corpus() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_is_read_or_refused(name: str) -> None:
    """Its seeds are those of `tests.fuzz.seeds`, next to what was found."""
    target = TARGETS[name]
    inputs = [file.read_bytes() for file in sorted((CORPUS / name).iterdir())]
    assert set(seeds()[name]) <= set(inputs)
    for data in inputs:
        try:
            target.run(data)
        except target.refusals:
            pass


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """The compiled modules with sanitizers, at full strength and where the compiler has them."""
    if FULL and build.has_sanitizers():
        folder = tmp_path_factory.mktemp("sanitized")
        build.build(folder)
        yield folder
    else:
        yield None


@pytest.fixture
def settings(compiled: Path | None, tmp_path: Path) -> Settings:
    seconds = max(0.5, SECONDS / len(TARGETS) - _START_S)
    return Settings(seconds, random.randrange(1 << 31), tmp_path, INPUT_S, plain=True, compiled=compiled)


@pytest.mark.timeout(600)
def test_planted_faults_are_found(settings: Settings) -> None:
    """A fuzzer that cannot find a fault says nothing where it finds none."""
    assert list(missed(settings)) == []


@pytest.mark.timeout(SECONDS / len(TARGETS) + 300)
@pytest.mark.parametrize("name", TARGETS)
def test_new_inputs_are_read_or_refused(name: str, settings: Settings) -> None:
    told = fuzz(name, settings)
    assert told.executions > 0
    inputs = {file.name: file.read_bytes() for file in (settings.folder / name).glob("found-*") if not file.suffix}
    assert told.findings == [], inputs
