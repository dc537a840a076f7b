"""Entries of a fleet: what is refused, what is kept of a file, and what of two entries stays."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
import yaml

from cdc.fleet.clash import clashes, doubts
from cdc.fleet.entry import Entry, entry_of, free_places, read_entries
from cdc.fleet.secrets import literal_secrets
from cdc.model.errors import ConfigError

GOOD = """\
name: shop   # the password is hunter2
source:
  type: postgres
  url: postgresql://cdc:${SHOP_PASSWORD}@db.example:5432/shop
  master_key: "${file:/run/secrets/master}"
  tables: [public.orders]
  columns: {public.orders: {hash: {columns: [phone], salt: "${file:/run/secrets/salt}"}, mask: [password]}}
sink:
  bootstrap_servers: ${env:KAFKA}
  partitions: ${PARTITIONS}
  options: {sasl.username: shop, sasl.password: "${file:/run/secrets/kafka}", ssl.key.location: /etc/key.pem}
"""


def added(folder: Path, text: str, *, added_ms: int = 1, place: int = 0) -> Entry:
    file = folder / "connector.yaml"
    file.write_text(text)
    return entry_of(file, place=place, added_ms=added_ms)


def test_an_entry_keeps_references_and_no_comment(tmp_path: Path) -> None:
    """Neither the variables nor the secret files need be there where it is added."""
    entry = added(tmp_path, GOOD)
    assert (entry.name, entry.prefix) == ("shop", "shop")
    assert yaml.safe_load(entry.yaml) == yaml.safe_load(GOOD)
    assert "hunter2" not in entry.yaml
    (read,) = read_entries({"shop": entry.to_bytes()}).good.values()
    assert read == entry


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("${SHOP_PASSWORD}", "hunter2", "source.url"),
        ("${SHOP_PASSWORD}", "hunter2${SHOP_PASSWORD}", "source.url"),
        ("${SHOP_PASSWORD}", "${SHOP_PASSWORD:-hunter2}", "source.url"),
        ("cdc:${SHOP_PASSWORD}@db.example:5432/shop", "db.example/shop?user=cdc&password=hunter2", "source.url"),
        ("cdc:${SHOP_PASSWORD}@db.example:5432/shop", "db.example/shop?sslpassword=hunter2", "source.url"),
        (
            "postgresql://cdc:${SHOP_PASSWORD}@db.example:5432/shop",
            "host=db.example user=cdc password=hunter2",
            "source.url",
        ),
        ("postgresql://cdc:${SHOP_PASSWORD}@db.example:5432/shop", "sslpassword = 'a hunter2'", "source.url"),
        ("${file:/run/secrets/master}", "hunter2" * 5, "source.master_key"),
        ("${file:/run/secrets/salt}", "hunter2", "source.columns.public.orders.hash.salt"),
        ("${file:/run/secrets/kafka}", "hunter2", "sink.options.sasl.password"),
        ("ssl.key.location: /etc/key.pem", "ssl.key.pem: hunter2", "sink.options.ssl.key.pem"),
        ("ssl.key.location: /etc/key.pem", "ssl.key.password: hunter2", "sink.options.ssl.key.password"),
        (
            "ssl.key.location: /etc/key.pem",
            "sasl.oauthbearer.client.secret: hunter2",
            "sink.options.sasl.oauthbearer.client.secret",
        ),
        ("ssl.key.location: /etc/key.pem", "sasl.jaas.config: hunter2", "sink.options.sasl.jaas.config"),
        *(
            (
                "sink:\n",
                f"sink:\n  format: avro\n  registry: {{url: http://r, options: {{{name}: hunter2}}}}\n",
                f"sink.registry.options.{name}",
            )
            for name in ("basic.auth.user.info", "ssl.key.password", "bearer.auth.token", "bearer.auth.client.secret")
        ),
        ("type: postgres", "type: postgres\n  options: {api_key: hunter2}", "source.options.api_key"),
        (
            "  tables: [public.orders]",
            "  tables: [public.orders]\n  options: {at: ['https://a:hunter2@b']}",
            "source.options.at[0]",
        ),
    ],
)  # fmt: skip
def test_a_secret_that_is_written_out_is_refused_by_its_key(tmp_path: Path, old: str, new: str, where: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError) as refused:
        added(tmp_path, GOOD.replace(old, new, 1))
    assert f"{where} holds a secret that is written out" in refused.value.message
    assert "hunter2" not in str(refused.value)


def test_all_of_them_are_named() -> None:
    node = yaml.compose("{a: {password: x}, b: 'mysql://u:p@h', c: 'mysql://u@h', d: 'mysql://u:${P}@h?ssl_ca=/a@b'}")
    assert literal_secrets(node) == ["a.password", "b"]
    fine = yaml.compose("source: {url: 'host=h password=${PW}', where: {a.b: \"password = 'x'\"}}")
    assert literal_secrets(fine) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tables:", "tabels:", "source.tabels: unknown key"),
        ("name: shop", "name: [", "this is not YAML"),
        ("name: shop", "name: Shop", "is not a name"),
        ("name: shop", "name: ${SHOP}", "name holds a reference"),
        ("  bootstrap", "  topic_prefix: ${SHOP:-a}\n  bootstrap", "sink.topic_prefix holds a reference"),
        ("sink:\n", "sink:\n  type: jsonl\n  path: /tmp/x\n", "this connector has no topics"),
        ("${env:KAFKA}", "${vault:kafka}", "is not a reference"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        added(tmp_path, GOOD.replace(old, new, 1))
    assert message in refused.value.message


def test_of_two_that_do_not_go_together_the_first_stays(tmp_path: Path) -> None:
    """Wrong records of any kind are refused each by itself; all readers judge alike, in whatever order they read."""
    first = added(tmp_path, GOOD, added_ms=1)
    same_prefix = GOOD.replace("name: shop", "name: other").replace("sink:\n", "sink:\n  topic_prefix: shop\n")
    second = added(tmp_path, same_prefix, added_ms=2, place=7)
    third = added(tmp_path, GOOD.replace("name: shop", "name: third"), added_ms=3)
    records = {
        "third": third.to_bytes(),
        "other": second.to_bytes(),
        "shop": first.to_bytes(),
        "wrong-key": third.to_bytes(),
        "broken": b"{",
        "newer": b'{"version": 2, "place": 9}',
        "no-place": orjson.dumps({**orjson.loads(third.to_bytes()), "place": -1}),
        "no-text": orjson.dumps({**orjson.loads(third.to_bytes()), "yaml": 5}),
        "bad-yaml": orjson.dumps({**orjson.loads(third.to_bytes()), "yaml": "name: bad-yaml\nsource: 1\nsink: {}\n"}),
    }
    forwards, backwards = read_entries(records), read_entries(dict(reversed(records.items())))
    assert forwards == backwards
    assert set(forwards.good) == {"shop", "third"}
    said = {name: refused.message for name, refused in forwards.refused.items()}
    assert "topic prefix shop is that of connector shop" in said["other"]
    assert "is the file of connector third" in said["wrong-key"]
    assert said["broken"] == "entry broken is no record of this release"
    assert said["newer"] == "entry newer is no record of this release"
    assert (said["no-place"], said["no-text"]) == ("entry no-place is damaged", "entry no-text is damaged")
    assert "entry bad-yaml:2: source" in said["bad-yaml"]
    assert forwards.places() >= {0, 7, 9}


def test_one_address_of_metrics_is_for_one_connector(tmp_path: Path) -> None:
    first, second = (
        added(tmp_path, GOOD.replace("name: shop", f"name: {name}") + "metrics: {listen: 0.0.0.0:9187}\n")
        for name in ("a", "b")
    )
    (clash,) = clashes(second, [first])
    assert "metrics.listen 0.0.0.0:9187 is that of connector a" in clash.message
    assert list(clashes(second, [first], fleet="elsewhere")) == []
    (clash,) = clashes(first, [first], fleet="elsewhere")
    assert clash.message == "connector a is there already, in fleet elsewhere"


def postgres(url: str, more: str = "") -> str:
    return f"source: {{type: postgres, url: '{url}', tables: [public.t]{more}}}"


def mysql(url: str) -> str:
    return f"source: {{type: mysql, url: '{url}', tables: [d.t], server_id: 7}}"


AT = "postgresql://u:${P}@db.example:5432/one"
OUTBOX = ", outbox: {table: public.t, topic_prefix: b.event}"
SHARED = [  # names, sources, topic prefixes; what is said of it, and whether who says so has it added
    (("my-shop", "my_shop"), (postgres(AT), postgres(AT)), None, "source.slot cdc_my_shop is that of", False),
    (("my-shop", "myshop"), (postgres(AT), postgres(AT)), None, "has nearly the name of", True),
    (("a", "b"), (postgres(AT, ", slot: s"), postgres(AT.replace("one", "two"), ", slot: s")), None,
     "source.slot s is that of connector a, at the same server", False),
    (("a", "b"), (postgres(AT, ", slot: s"), postgres(AT.replace("db.", "d2."), ", slot: s")), None, None, False),
    (("a", "b"), (postgres("${A}", ", slot: s"), postgres("${A}", ", slot: s")), None, "at the same server", False),
    (("a", "b"), (postgres("${A}", ", slot: s"), postgres("${B}", ", slot: s")), None, "cannot be told", True),
    (("a", "b"), (postgres("host=h port=1 user=u", ", slot: s"), postgres("port=1 host=h", ", slot: s")), None,
     "at the same server", False),
    (("a", "b"), (mysql("mysql://u@DB/d"), mysql("mysql://v@db/e")), None, "source.server_id 7 is that of", False),
    (("a", "b"), (postgres("${A}"), postgres("${A}")), ("Shop", "shop"), "prefix shop is nearly that of", True),
    (("a", "b"), (postgres("${A}", OUTBOX), postgres("${A}")), None,
     "the topics of a's outbox would look like those of tables of connector b: both begin with b.", False),
    (("a", "b"), (postgres("${A}"), postgres("${A}")), None, None, False),
]  # fmt: skip


@pytest.mark.parametrize(("names", "sources", "prefixes", "said", "may_be_right"), SHARED)
def test_what_two_entries_must_not_share_is_refused_by_the_other_ones_name(
    tmp_path: Path,
    names: tuple[str, str],
    sources: tuple[str, str],
    prefixes: tuple[str, str] | None,
    said: str | None,
    *,
    may_be_right: bool,
) -> None:
    """Whichever comes first. What may be right is added with --force, and members then run both."""
    entries = [
        added(tmp_path, f"name: {name}\n{source}\nsink: {{bootstrap_servers: 'h:1', topic_prefix: {prefix}}}\n")
        for name, source, prefix in zip(names, sources, prefixes or names, strict=True)
    ]
    for first, second in (entries, entries[::-1]):
        refused = [*clashes(second, [first], fleet="other"), *doubts(second, [first], fleet="other")]
        assert all(second.name in one.message and f" {first.name}" in one.message for one in refused)
        assert bool(list(clashes(second, [first]))) == (said is not None and not may_be_right)
        assert bool(list(doubts(second, [first]))) >= may_be_right
        assert all("--force" in (one.hint or "") for one in doubts(second, [first]))
    found = [one.message for one in (*clashes(entries[1], entries[:1]), *doubts(entries[1], entries[:1]))]
    assert said is None or any(said in one for one in found), found
    assert found == [] or said is not None
    read = read_entries({entry.name: entry.to_bytes() for entry in entries})
    assert len(read.good) == (2 if said is None or may_be_right else 1)


@pytest.mark.parametrize(
    ("mine", "other", "one"),
    [
        ("127.0.0.1:9187", "0.0.0.0:9187", True),
        ("[::]:9187", "localhost:09187", True),
        ("127.0.0.1:9187", "127.0.0.1:9188", False),
        ("127.0.0.1:9187", "10.0.0.1:9187", False),
    ],
)
def test_an_address_of_all_addresses_is_each_ones(tmp_path: Path, mine: str, other: str, *, one: bool) -> None:
    entries = [
        added(tmp_path, GOOD.replace("name: shop", f"name: {name}") + f"metrics: {{listen: '{at}'}}\n")
        for name, at in (("a", mine), ("b", other))
    ]
    assert any("metrics.listen" in clash.message for clash in clashes(entries[1], entries[:1])) == one


def test_places_are_filled_from_the_lowest() -> None:
    assert free_places({0, 1, 3}, 3) == [2, 4, 5]
    assert free_places((), 2) == [0, 1]
