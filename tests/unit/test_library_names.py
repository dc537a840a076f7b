"""`import cdc`: its names are there, typed, cheap, and need no package that their user does not have."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cdc
from cdc.library.follow import configured
from cdc.library.topics import Topics
from cdc.model import errors

HOME = Path(__file__).parents[2]


@pytest.mark.parametrize("name", cdc.__all__)
def test_a_name_is_there(name: str) -> None:
    assert getattr(cdc, name) is getattr(cdc, name)
    assert name in dir(cdc)


def test_the_stub_has_the_same_names() -> None:
    tree = ast.parse((HOME / "cdc" / "__init__.pyi").read_text())
    imported = {alias.asname for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported == set(cdc.__all__)
    (listed,) = (node.value for node in tree.body if isinstance(node, ast.Assign))
    assert ast.literal_eval(listed) == cdc.__all__
    assert {f"cdc.library.{name}" for name in ("api", "changes")} <= set(cdc._WHERE.values())


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        cdc.absent  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    "error",
    [
        errors.RetryableError("m", hint="h"),
        errors.GapError("m", may_pass=True),
        errors.TopicError("m", hint="h", topic="t"),
        errors.HinderedError("m", hint="h", topic="t"),
        errors.TooLargeError("m", hint="h", topic="t", key=b"k", value=b"v"),
        errors.NewTablesError("m", ["public.t"]),
        errors.ProtocolError(3, "what"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_out_of_another_process_as_it_is(error: errors.CdcError) -> None:
    """One that Python could not make again would leave a pool of processes broken, and its reason unknown."""
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (vars(again), str(again), again.args) == (vars(error), str(error), error.args)


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=HOME, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_loads_nothing() -> None:
    code = "import sys, cdc; print([name for name in sys.modules if name.startswith(('cdc.', 'pyarrow', 'orjson'))])"
    assert _python(code) == "[]"


def test_nothing_is_needed_that_is_not_used() -> None:
    """Following a database needs neither pyarrow nor pyspark, pandas or polars; and what is missing is said."""
    code = (
        "import sys\n"
        "for name in ('pyarrow', 'pyspark', 'pandas', 'polars'): sys.modules[name] = None\n"
        "import cdc\n"
        "cdc.follow, cdc.table, cdc.spark, cdc.Topics\n"
        "from cdc.library.topics import Topics\n"
        "for call in (lambda: Topics.arrow(Topics.__new__(Topics)), lambda: cdc.spark(None, 'x.yaml', 'a.b')):\n"
        "    try: call()\n"
        "    except cdc.ConfigError as exc: print(exc.message)\n"
    )
    said = _python(code).splitlines()
    assert [line.split(",")[0] for line in said] == ["this needs pyarrow", "this needs pyspark"]


URL = "postgresql://u@127.0.0.1:1/d"


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"tabel": "public.t", "key": ["id"]}, "'tabel' is no part of a table"),
        ({"table": "public.t", "key": ["id"], "prefx": "/b/"}, "'prefx' is no part of a table"),
        ({"key": ["id"]}, "does not say its table"),
        ({"table": "public.t", "prefix": "/b/", "text": "false"}, "text is not what is needed"),
        ({"table": "public.t", "key": 5}, "key is not what is needed"),
        (5, "5 is neither a name nor a dictionary"),
        (None, "None is neither a name nor a dictionary"),
    ],
)
def test_an_item_of_tables_that_says_something_else_is_refused(item: Any, said: str) -> None:
    """What is passed over would be another table, another key, or values of another form."""
    with pytest.raises(cdc.ConfigError, match=said):
        cdc.follow(URL, tables=[item], position="a.pos")


def test_a_key_of_one_column_may_be_a_name() -> None:
    of = configured(URL, [{"table": "public.t", "key": "id"}], Path("a.pos"), None).source
    assert of.keys == {"public.t": ("id",)}


def test_columns_that_are_wanted_as_text_are_named_as_each_function_takes_them(tmp_path: Path) -> None:
    """Each of the two takes another form, and each is easily given the other's."""
    file = tmp_path / "c.yaml"
    source = f"{{type: postgres, url: '{URL}', tables: [a.b]}}"
    file.write_text(f"name: c\nsource: {source}\nsink: {{bootstrap_servers: 'h:1'}}\n")
    given: Any
    for given in (["total"], "total"):
        with pytest.raises(cdc.ConfigError, match="text names columns by their tables"):
            object.__new__(Topics).arrow(text=given)
    given = {"a.b": ["total"]}
    with pytest.raises(cdc.ConfigError, match="text names columns of the one table") as told:
        cdc.table(file, "a.b", text=given)
    assert told.value.hint == "text=['total']"
    given = [{"table": "a.b"}]
    with pytest.raises(cdc.ConfigError, match="of a connector's file are names"):
        cdc.follow(str(file), tables=given)
