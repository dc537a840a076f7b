"""Documents cannot lie: each key, option, command and error class has its line, each example and link is tried."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
import shlex
import typing
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import pytest
import yaml

from cdc.cli import reference
from cdc.cli.examples import EXAMPLES
from cdc.config import config, kafka_config, registry
from cdc.config.apply_config import StoreConfig
from cdc.config.config import ApplyConfig, ConnectorConfig, load_apply, load_connector
from cdc.config.views import ViewsConfig, load_views
from cdc.config.yaml.yaml_binding import BOUND_AS, name_in_yaml
from cdc.fleet.fleet_config import FleetFile, load_fleet
from cdc.model import errors
from cdc.model.errors import CdcError, ConfigError
from connectors.etcd import address as etcd_address
from connectors.mysql import session as mysql_session
from connectors.postgres import session as postgres_session
from sinks.client.options import python_client
from spark_apply.events.kafka.client import OPTIONS, jvm_options
from spark_apply.model.store import STORES, open_store
from spark_apply.spark.session import settings_of

HOME: Final = Path(__file__).parents[2]
DOCS: Final = HOME / "docs"
PAGES: Final = sorted([HOME / "README.md", HOME / "CHANGELOG.md", *DOCS.rglob("*.md")])
PACKAGES: Final = ("cdc", "connectors", "sinks", "snapshot", "spark_apply")
FENCE: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CODE: Final = re.compile(r"`[^`]*`")
BANNED: Final = re.compile(r"\b(anew|mend|mends|mended|mending|what lacks|whoever|thereof)\b", re.IGNORECASE)

_TYPES: Final = {str: "text", int: "whole number", float: "number", bool: "true or false"}


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def named(page: Path) -> str:
    return str(page.relative_to(HOME))


# --- Keys of the two files --------------------------------------------------------------------------------------------


class Key(NamedTuple):
    """A key of a file: where it is, and the line that its entry begins with."""

    path: str
    line: str


def keys_of(cls: type[Any], at: str, places: Mapping[str, str]) -> Iterator[Key]:
    """Every key that YAML can give; `places` has the name in a path of what a user names: ``stores`` -> ``<name>``."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        wanted = field.metadata.get(BOUND_AS, hints[field.name])
        if wanted is None:
            continue
        path = f"{at}{name_in_yaml(field)}"
        forms = [one for one in typing.get_args(wanted) if one is not type(None)]
        origin = typing.get_origin(wanted)
        if (origin is not None and not isinstance(origin, type)) or type(None) in typing.get_args(wanted):  # X | None
            wanted, origin = forms[0], typing.get_origin(forms[0])
        if wanted == str | tuple[str, ...]:
            kind = "text or list"
        elif origin is tuple:
            kind = "list"
        elif dataclasses.is_dataclass(wanted) or (origin is not None and issubclass(origin, Mapping)):
            kind = "keys and values"
        else:
            kind = _TYPES[wanted]
        yield Key(path, f"{kind}, {_need(field)}")
        inner = [wanted, *(each for form in typing.get_args(wanted) for each in (form, *typing.get_args(form)))]
        for one in inner:
            if isinstance(one, type) and dataclasses.is_dataclass(one):
                step = "." if one is wanted else "[]." if origin is tuple else f".{places[field.name]}."
                yield from keys_of(one, f"{path}{step}", places)


def _need(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "required" if field.default_factory is dataclasses.MISSING else "optional"
    if field.default in (None, ()):
        return "optional"
    shown = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
    return f"default `{shown}`"


CONNECTOR: Final = DOCS / "connector-reference.md"
APPLY: Final = DOCS / "apply-reference.md"
VIEWS: Final = DOCS / "views.md"
FLEET: Final = DOCS / "fleet.md"
KEYS: Final = [
    *((CONNECTOR, key) for key in keys_of(ConnectorConfig, "", {"columns": "<table>"})),
    *((APPLY, key) for key in keys_of(ApplyConfig, "", {"stores": "<name>", "tables": "<table>"})),
    *((FLEET, key) for key in keys_of(FleetFile, "", {})),
    *((VIEWS, key) for key in keys_of(ViewsConfig, "", {"views": "<name>", "reads": "<table>", "streams": "<name>"})),
]


def entries(page: Path) -> dict[str, list[str]]:
    """Paragraphs of each heading that is a key."""
    found = re.findall(r"^### `([^`]+)`\n\n(.*?)(?=^#|\Z)", text_of(page), re.MULTILINE | re.DOTALL)
    return {path: body.strip().split("\n\n") for path, body in found}


@pytest.mark.parametrize(("page", "key"), KEYS, ids=lambda value: value.path if isinstance(value, Key) else value.stem)
def test_a_key_has_its_entry(page: Path, key: Key) -> None:
    """Type and default as the dataclass has them, an example, and what a wrong value gives."""
    found = entries(page)
    assert key.path in found, f"{named(page)} has no heading ### `{key.path}`"
    first, *rest = found[key.path]
    assert first == key.line
    assert any("- Example: " in part for part in rest), key.path
    assert any("- Wrong: " in part for part in rest), key.path


@pytest.mark.parametrize("page", [CONNECTOR, APPLY, VIEWS, FLEET], ids=named)
def test_no_entry_is_of_a_key_that_is_gone(page: Path) -> None:
    assert sorted(entries(page)) == sorted(key.path for of, key in KEYS if of == page)


BASES: Final = {
    CONNECTOR: """
name: shop
source: {type: postgres, url: "postgresql://localhost/shop", tables: [public.orders]}
sink: {bootstrap_servers: "127.0.0.1:9092"}
""",
    APPLY: """
name: shop-warehouse
source: {bootstrap_servers: "127.0.0.1:9092", topic_prefix: shop}
stores: {warehouse: {type: tantivy, path: ./search}}
tables: {public.orders: {stores: [warehouse]}}
checkpoint: ./checkpoint
""",
    VIEWS: """
name: shop-views
source: {bootstrap_servers: "127.0.0.1:9092", topic_prefix: shop}
state: ./state
views: {orders: {sql: "SELECT id FROM public.orders", key: [id]}}
""",
    FLEET: """
fleet: production
bootstrap_servers: "127.0.0.1:9092"
""",
}
TRIED: Final = [
    (page, (key or "").strip("`"), *found)
    for page in BASES
    for key, body in re.findall(r"^### (.*?)\n(.*?)(?=^#|\Z)", text_of(page), re.MULTILINE | re.DOTALL)
    for found in re.findall(r"^- (Example|Wrong): (left out|`[^`]+`)(?: gives `([^`]+)`)?$", body, re.MULTILINE)
]


def merged(base: Any, change: Any) -> Any:
    """Keys of `change` over those of `base`; what is empty, or a store, is replaced as a whole."""
    if isinstance(base, dict) and isinstance(change, dict) and change and "path" not in base:
        return {**base, **{key: merged(base[key], value) if key in base else value for key, value in change.items()}}
    return change


def judge(page: Path, file: Path) -> None:
    """All that is refused before a server is asked."""
    if page == APPLY:
        job = load_apply(file)
        jvm_options(job.source.options)
        settings_of({}, job.spark)
        for name, store in job.stores.items():
            if (
                store.type in ("tantivy", "iceberg", "delta")
                or store.url is None
                or not store.url.startswith("postgresql")
            ):
                open_store(store, name=name, prefix=job.source.topic_prefix, spark=None)
        return
    if page == VIEWS:
        settings_of({}, load_views(file).spark)
        return
    if page == FLEET:
        load_fleet(file, fleet=None, bootstrap_servers=None)
        return
    connector = load_connector(file)
    registry.source(connector)
    if connector.source.type == "postgres":
        postgres_session.parameters(connector.source.url, "test")
    elif connector.source.type in ("triggers", "etcd"):
        registry.source(connector)()
    else:
        mysql_session.address(connector.source.url)
    python_client(connector.sink.bootstrap_servers, connector.sink.options)
    registry.sink(connector.sink, connector.name)


@pytest.mark.parametrize(("page", "key", "what", "change", "message"), TRIED, ids=lambda value: str(value)[:60])
def test_an_example_is_taken_and_a_wrong_value_refused(  # noqa: PLR0917 - what a line of the page has
    page: Path, key: str, what: str, change: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAREHOUSE_PASSWORD", "x")
    whole = yaml.safe_load(BASES[page])
    if change == "left out":
        del whole[key]
    else:
        whole = merged(whole, yaml.safe_load(change.strip("`")))
    file = tmp_path / "file.yaml"
    file.write_text(yaml.safe_dump(whole, allow_unicode=True))
    if what == "Example":
        assert not message
        judge(page, file)
        return
    assert message, f"{change}: what does it give?"
    with pytest.raises(ConfigError) as refused:
        judge(page, file)
    assert message in refused.value.message


def test_every_line_of_an_example_is_tried() -> None:
    """One that is written in another form would not be."""
    lines = [line for page in BASES for line in text_of(page).splitlines() if line.startswith(("- Example", "- Wrong"))]
    assert len(TRIED) == len(lines)


def test_options_have_their_lines() -> None:
    """Parameters of a URL, Kafka's properties, Debezium's names, options of stores."""
    connector, apply = text_of(CONNECTOR), text_of(APPLY)
    rows = " ".join(line for line in connector.splitlines() if line.startswith("| `"))
    given = {"host", "port", "dbname", "user"}
    libpq = set(postgres_session.parameters("postgresql://u@db.example:5432/shop", "test")) - given
    wanted = [
        *mysql_session._OPTIONS,
        *etcd_address.OPTIONS,
        *(libpq - {"client_encoding", "application_name"}),
        *python_client("h:1", {}).keys() - {"bootstrap_servers", "ssl_check_hostname"},
        *config.DEBEZIUM_NAMES,
        "compression.type",
        "message.max.bytes",
        "socket.timeout.ms",
        "client.id",
    ]
    assert [name for name in wanted if f"`{name}`" not in rows] == []
    with pytest.raises(ConfigError) as refused:
        python_client("h:1", {"ssl.unheard": "1"})
    known = (refused.value.hint or "").removeprefix("known: ").split(", ")
    assert len(known) > 5
    assert [name for name in known if f"`{name}`" not in rows] == []
    assert [name for name in sorted(kafka_config.GUARANTEED) if f"`{name}`" not in connector] == []
    assert [name for name in OPTIONS if f"`{name}`" not in apply] == []
    for kind in STORES:
        _, heading, section = apply.partition(f"### Store type {kind}\n")
        assert heading, kind
        store = StoreConfig(type=kind, path="x", options={"unheard": 1})
        with pytest.raises(ConfigError) as refused:
            open_store(store, name="s", prefix="p", spark=None)
        hint = refused.value.hint or ""
        allowed = hint.removeprefix("allowed here: ").split(", ") if hint.startswith("allowed") else []
        section = section.partition("\n#")[0]
        assert [name for name in allowed if f"`{name}`" not in section] == []
    for kind in registry.SOURCES:
        assert f"`{kind}`" in connector


# --- Commands ---------------------------------------------------------------------------------------------------------


def test_the_reference_of_commands_is_what_is_generated() -> None:
    """python -m cdc.cli.reference > docs/cli.md"""
    assert text_of(DOCS / "cli.md") == reference.page()


def test_every_command_and_option_is_in_the_reference() -> None:
    page = text_of(DOCS / "cli.md")
    found = list(reference.commands())
    assert len(found) > 20
    for words, command, _ in found:
        _, heading, section = page.partition(f"\n## cdc {words}\n")
        assert heading, words
        section = section.partition("\n## ")[0]
        assert command.help, f"cdc {words} says nothing of itself"
        for option in (each for each in command.params if isinstance(each, click.Option)):
            assert option.help, f"cdc {words} {option.opts}"
            assert all(f"`{name}" in section for name in option.opts), f"cdc {words} {option.opts}"


def test_each_command_has_an_example_that_it_takes() -> None:
    """Help ends with it; its words are parsed by the command that it is of."""
    found = {words: command for words, command, _ in reference.commands() if not isinstance(command, click.Group)}
    assert EXAMPLES.keys() == found.keys()
    for words, command in found.items():
        assert command.epilog, words
        for line in EXAMPLES[words].splitlines():
            given = shlex.split(line.partition(" | ")[0].partition(" > ")[0].removeprefix("TOKEN=$(").removesuffix(")"))
            begin = 1 + len(words.split())
            assert given[:begin] == ["cdc", *words.split()]
            command.make_context(words, given[begin:])


def test_what_json_prints_is_told_of_each_command_that_can() -> None:
    able = {
        words
        for words, command, _ in reference.commands()
        if any("--json" in each.opts for each in command.params if isinstance(each, click.Option))
    }
    assert able == set(reference.OUTPUTS)
    assert set(reference.EXITS) <= {words for words, *_ in reference.commands()}


# --- Errors -----------------------------------------------------------------------------------------------------------

TROUBLE: Final = DOCS / "troubleshooting.md"
CLASSES: Final = sorted(
    (each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, CdcError)),
    key=lambda each: each.__name__,
)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_class_of_errors_has_its_line(cls: type[CdcError]) -> None:
    """With the exit code that it ends a command with."""
    rows = re.findall(rf"^\| `{cls.__name__}` \|.*\| (\d) \|$", text_of(TROUBLE), re.MULTILINE)
    assert rows == [str(cls.exit_code)]


class Said(NamedTuple):
    """What the code of the packages says, with … for what is filled in."""

    texts: frozenset[str]
    errors: frozenset[tuple[str, str]]
    """File and text of each error that says by itself what is wrong: at least three words that are not filled in."""


@functools.cache
def said() -> Said:
    """Read file by file: all their trees at once are work for the collector of garbage."""
    texts, errors = set[str](), set[tuple[str, str]]()
    for file in (file for package in PACKAGES for file in (HOME / package).rglob("*.py")):
        nodes = list(ast.walk(ast.parse(text_of(file))))
        texts |= {text for node in nodes if isinstance(node, ast.expr) and (text := _template(node))}
        scopes = (node for node in nodes if isinstance(node, ast.FunctionDef))
        errors |= {(str(file.relative_to(HOME)), text) for scope in scopes for text in _raised(scope)}
    return Said(frozenset(texts), frozenset(errors))


def _template(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return None


def _raised(scope: ast.FunctionDef) -> Iterator[str]:
    names = {cls.__name__ for cls in CLASSES} - {"BugError", "ProtocolError"}
    inside = list(ast.walk(scope))
    assigned = {
        node.targets[0].id: node.value
        for node in inside
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in inside:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            first = node.args[0] if node.args else node
            text = _template(assigned.get(first.id, first) if isinstance(first, ast.Name) else first)
            if text and len(re.findall(r"\w{2,}", text)) > 2:
                yield text


def patterns() -> list[re.Pattern[str]]:
    told = (words.strip("… ").split("…") for words in FIRST_WORDS)
    return [re.compile(r"[^\0]*".join(map(re.escape, parts))) for parts in told]


FIRST_WORDS: Final = re.findall(r"^\| `([^`]+)` \| ", text_of(TROUBLE).partition("## Messages")[2], re.MULTILINE)


def test_first_words_are_of_messages_that_the_code_has() -> None:
    """… stands for whatever is filled in there: a name, a number, a host."""
    assert len(FIRST_WORDS) > 100
    assert [words for words, count in Counter(FIRST_WORDS).items() if count > 1] == []
    known = "\0".join(sorted(said().texts))
    found = zip(FIRST_WORDS, patterns(), strict=True)
    assert [words for words, pattern in found if not pattern.search(known)] == []


def test_an_error_that_is_raised_has_its_line() -> None:
    """Twins of `cdc.testing` are not for users."""
    found = {(file, text) for file, text in said().errors if not file.startswith("cdc/testing/")}
    assert len(found) > 200
    known = list(zip(FIRST_WORDS, patterns(), strict=True))

    def told(text: str) -> bool:
        """By a line; what begins with a verdict (``slot missing: …``), by the verdict's own line."""
        words = [words for words, pattern in known if pattern.search(text)]
        verdict = re.match(r"[a-z][a-z -]*(?=:)", text)
        if verdict is None:
            return bool(words)
        return any(verdict[0].startswith(each.strip("… :")) or each.startswith(verdict[0]) for each in words)

    assert sorted((file, text) for file, text in found if not told(text)) == []


# --- All documents ----------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    found: Counter[str] = Counter()
    made: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.+)$", FENCE.sub("", text_of(page)), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        anchor = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        made.add(f"{anchor}-{found[anchor]}" if found[anchor] else anchor)
        found[anchor] += 1
    return made


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", FENCE.sub("", text_of(page))).replace("\n", " "))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_and_anchors_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{named(page)}: {link}"
        if anchor:
            assert anchor in anchors(path), f"{named(page)}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_words_are_plain(page: Path) -> None:
    told = [line for line in text_of(page).splitlines() if BANNED.search(CODE.sub("", line))]
    assert told == []


PYTHON: Final = r"`((?:cdc|connectors|sinks|snapshot|spark_apply|tests|bench)/[\w/]+\.py)`"
PARTS: Final = rf"{PYTHON} \(((?:`\w+`(?:, )?)+)\)"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_paths_and_modules_that_are_named_exist(page: Path) -> None:
    """Files and folders of the repository, what is in them by name, modules behind ``python -m``."""
    page_text = text_of(page)
    paths = re.findall(r"`((?:cdc|connectors|sinks|snapshot|spark_apply|docs|tests|bench|deploy)/[\w/.-]*)`", page_text)
    assert [path for path in paths if not (HOME / path).exists()] == []
    parts = [(path, *re.findall(r"`(\w+)`", names)) for path, names in re.findall(PARTS, page_text)]
    parts += [(path, name) for name, path in re.findall(rf"`(\w+)` (?:of|in) {PYTHON}", page_text)]
    assert [(p, n) for p, *names in parts for n in names if not re.search(rf"\b{n}\b", text_of(HOME / p))] == []
    modules = re.findall(r"python3? -m ((?:cdc|bench|spark_apply|tests)\.?[\w.]*)", page_text)
    gone = [m for m in modules if not any((HOME / m.replace(".", "/")).with_suffix(s).exists() for s in (".py", ""))]
    assert gone == []


def test_tests_that_are_named_exist() -> None:
    written = {name for file in (HOME / "tests").rglob("*.py") for name in re.findall(r"def (\w+)", text_of(file))}
    files = {file.stem for file in (HOME / "tests").rglob("*.py")}
    told = {(named(page), name) for page in PAGES for name in re.findall(r"`(test_\w+)`", text_of(page))}
    assert told
    assert sorted((page, name) for page, name in told if name not in written | files) == []


@functools.cache
def _only_in_full() -> set[str]:
    """Tests that no push runs, by their names."""
    left, kept = set(), set()
    for file in (HOME / "tests").rglob("test_*.py"):
        for made in ast.walk(ast.parse(text_of(file))):
            if isinstance(made, ast.FunctionDef) and made.name.startswith("test_"):
                marks = {ast.unparse(mark) for mark in made.decorator_list}
                (left if "pytest.mark.full" in marks else kept).add(made.name)
    return left - kept


def _promises() -> list[str]:
    """Rows of tables, items of lists, paragraphs."""
    return re.split(r"\n\n|\n(?=[|-])", text_of(DOCS / "guarantees.md"))


_IN_FULL_ALONE: Final = {
    "test_two_workers_compute_views_and_one_of_them_may_be_killed",  # two workers that fold are tried by each push
    "test_a_damaged_file_is_a_gap_that_can_be_closed",  # a log that PostgreSQL cannot read is
}


def test_each_promise_is_tried_by_each_push() -> None:
    """By one of the tests that it names, or by each fourth push; second witnesses are left to `make test-all`."""
    full = _only_in_full()
    assert full >= _IN_FULL_ALONE
    asked = [set(re.findall(r"`(?:tests/[\w/]*/)?(test_\w+)(?:\.py)?`", promise)) for promise in _promises()]
    assert [names for names in asked if names and names <= full - _IN_FULL_ALONE] == []


def test_what_stands_for_a_test_that_is_left_out_is_run_by_each_push() -> None:
    """The reasons beside `@pytest.mark.full` name tests, files or laws that are there, and no test that is full."""
    full, files = _only_in_full(), {file.stem for file in (HOME / "tests").rglob("*.py")}
    reasons = [
        reason
        for file in (HOME / "tests").rglob("test_*.py")
        for reason in re.findall(r"mark\.full  # (.+)", text_of(file))
    ]
    told = {name for reason in reasons for name in re.findall(r"\btest_\w+", reason)}
    assert len(told) > 50
    written = {name for file in (HOME / "tests").rglob("*.py") for name in re.findall(r"def (\w+)", text_of(file))}
    assert sorted(told - files - (written - full)) == []


@pytest.mark.parametrize(
    "words",
    [
        *("replication slot lag", "out of disk", "fail-over", "restart", "upgrade", "backup", "monitoring"),
        *("troubleshooting", "faq", "tls", "roles", "performance", "architecture", "exit codes"),
    ],
)
def test_the_usual_words_hit_a_heading(words: str) -> None:
    headings = [line for page in PAGES for line in re.findall(r"^#{1,3} .+$", text_of(page), re.MULTILINE)]
    assert any(words in heading.lower() for heading in headings)
