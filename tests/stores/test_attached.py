"""What others have attached to a PostgreSQL table stays with its name when a rebuild or a rollback exchanges copies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from psycopg2 import sql

from cdc.config.apply_config import ApplyTable
from cdc.model.change import Kind
from cdc.model.errors import OperatorError
from spark_apply.events.projection import projected_table
from spark_apply.model.completeness import Mark
from spark_apply.model.store import EVERYTHING, CopyError, Due, Visibility
from spark_apply.model.target_table import TargetTable, Version
from spark_apply.stores.postgres.copies.attached import attached as attached_to
from spark_apply.stores.postgres.session import locks
from spark_apply.stores.postgres.session.server import Server
from spark_apply.stores.postgres.store import PostgresStore
from tests.conftest import Database
from tests.stores.test_others_go_on import user

_COLUMNS = (("id", Kind("int64")), ("status", Kind("string")))
TABLE: TargetTable = projected_table(
    [Version("shop", "public", "orders", "shop.public.orders", 1, ("id",), _COLUMNS)], ApplyTable(stores=("copy",))
)
ATTACHED = (
    "GRANT SELECT ON orders TO {tenant} WITH GRANT OPTION",
    "GRANT SELECT (id), UPDATE (status) ON orders TO PUBLIC",
    "ALTER TABLE orders ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
    'CREATE POLICY "Own %I" ON orders FOR SELECT TO {tenant} USING (1 IN (SELECT id FROM orders) OR id % 2 = 1)',
    "CREATE POLICY few ON orders AS RESTRICTIVE FOR INSERT TO {tenant}, PUBLIC WITH CHECK (id > 0)",
    "CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
    "CREATE TRIGGER noted AFTER UPDATE OF status ON orders FOR EACH ROW WHEN (NEW.id > 1) EXECUTE FUNCTION noted()",
    'CREATE TRIGGER "Off" BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION noted()',
    'ALTER TABLE orders DISABLE TRIGGER "Off"',
    "CREATE RULE nothing AS ON DELETE TO orders DO INSTEAD NOTHING",
    "ALTER TABLE orders DISABLE RULE nothing",
    "CREATE TABLE customers (id bigint PRIMARY KEY) PARTITION BY HASH (id)",
    "CREATE TABLE customers_1 PARTITION OF customers FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
    "ALTER TABLE orders ADD CONSTRAINT whose FOREIGN KEY (id) REFERENCES customers DEFERRABLE NOT VALID",
    "CREATE PUBLICATION all_of_{tenant} FOR TABLE orders",
    "CREATE PUBLICATION part_of_{tenant} FOR TABLE orders (id, status) WHERE (id > 1)",
    "COMMENT ON TABLE orders IS 'it''s 100 %s'",
    "SET ROLE {tenant}; GRANT SELECT ON orders TO PUBLIC",
    "CREATE UNIQUE INDEX \"On %I USING\" ON orders (id, (status || 'x'))",
    "CREATE UNIQUE INDEX by_id ON orders (id DESC)",
    'ALTER TABLE orders CLUSTER ON "On %I USING", REPLICA IDENTITY USING INDEX by_id',
    "ALTER TABLE orders SET TABLESPACE {space}, SET (autovacuum_enabled = off, toast.vacuum_truncate = off)",
    "ALTER TABLE orders ALTER status SET STATISTICS 7, ALTER status SET (n_distinct = -0.5), SET (fillfactor = 70)",
    "ALTER TABLE orders OWNER TO {keeper}",
)
THERE = (
    "CREATE TABLE parts (LIKE orders) PARTITION BY LIST (id)",
    "CREATE TABLE roles (id bigint PRIMARY KEY)",
    "CREATE FUNCTION theirs() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
    "REVOKE ALL ON FUNCTION theirs() FROM PUBLIC",
)
LEFT = (
    "ALTER TABLE orders REPLICA IDENTITY FULL",
    "DROP POLICY few ON orders",
    'DROP TRIGGER "Off" ON orders',
    "REVOKE ALL ON orders FROM {tenant}",
)
OF = "FROM pg_class WHERE oid = 'public.orders'::regclass"
ITS_INDEXES = f"FROM pg_index WHERE indrelid = (SELECT oid {OF}) ORDER BY 3"
WHAT = (
    f"SELECT relowner, regexp_replace(relacl::text, '/[^,}}]*', '', 'g'), obj_description(oid) {OF}",
    f"SELECT relrowsecurity, relforcerowsecurity, relreplident {OF}",
    f"SELECT attname, attacl::text FROM pg_attribute WHERE attrelid = (SELECT oid {OF}) AND attacl IS NOT NULL",
    "SELECT * FROM pg_policies ORDER BY policyname",
    "SELECT pg_get_triggerdef(oid), tgenabled FROM pg_trigger WHERE NOT tgisinternal ORDER BY tgname",
    f"SELECT pg_get_ruledef(oid), ev_enabled FROM pg_rewrite WHERE ev_class = (SELECT oid {OF})",
    f"SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = (SELECT oid {OF}) AND contype = 'f'",
    "SELECT * FROM pg_publication_tables ORDER BY pubname",
    f"SELECT reloptions, (SELECT t.reloptions FROM pg_class t WHERE t.oid = reltoastrelid), reltablespace {OF}",
    f"SELECT indisclustered, indisreplident, substring(pg_get_indexdef(indexrelid), ' USING (.*)') {ITS_INDEXES}",
    f"SELECT attname, attstattarget, attoptions FROM pg_attribute WHERE attrelid = (SELECT oid {OF}) AND attnum > 0",
)


@pytest.fixture
def store(postgres18: Database) -> Iterator[PostgresStore]:
    """Of a user that is no superuser, with a copy that has its topic."""
    with user(postgres18) as url:
        opened = PostgresStore(Server(url, "stores.copy"), "shop")
        opened.open(TABLE)
        opened.fold([], {TABLE.qualified: Visibility(Mark({}, None), EVERYTHING)})
        yield opened
        opened.close()


def test_it_goes_with_the_name(postgres18: Database, store: PostgresStore) -> None:
    """Both ways, as it is by then; a table that is made has none of the rights that tables get by default."""
    owner, tenant, keeper, space = (f"{role}_{postgres18.name}" for role in ("app", "tenant", "keeper", "space"))

    def as_owner(*statements: str) -> None:
        named = [one.format(tenant=tenant, keeper=keeper, space=space) for one in statements]
        postgres18.execute(*(f"SET ROLE {owner}; {one}" for one in named))

    def attached() -> list[list[tuple[Any, ...]]]:
        return [postgres18.rows(query) for query in WHAT]

    postgres18.execute(f"CREATE ROLE {tenant}", f"CREATE ROLE {keeper} ROLE {owner}")
    postgres18.execute("SET allow_in_place_tablespaces = on", f"CREATE TABLESPACE {space} LOCATION ''")
    postgres18.execute(f"GRANT CREATE ON SCHEMA public TO {keeper}", f"GRANT CREATE ON TABLESPACE {space} TO {owner}")
    as_owner(*ATTACHED, "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC")
    before = attached()
    assert all(before)
    store.beside(TABLE)
    store.swap(TABLE, Due("rebuilt", {}))
    assert attached() == before
    as_owner(*LEFT)
    before = attached()
    store.roll_back(TABLE, Due("back", {}))
    assert attached() == before
    postgres18.execute(f"REVOKE CREATE ON TABLESPACE {space} FROM {owner}")
    with pytest.raises(OperatorError, match=f"may not hand on: tablespace {space}"):
        store.beside(TABLE)
    postgres18.execute(f"DROP OWNED BY {tenant}, {keeper}, {owner} CASCADE", f"DROP ROLE {tenant}, {keeper}")
    postgres18.execute(f"DROP TABLESPACE {space}")


def test_labels_go_with_it(postgres18: Database) -> None:
    """As masks of PostgreSQL Anonymizer are kept; there is no provider here to carry one out."""
    postgres18.execute('CREATE TABLE orders (id int, "E-Mail" text)')
    label = "INSERT INTO pg_seclabel VALUES ('orders'::regclass, 'pg_class'::regclass, {}, 'anon', 'it''s {}')"
    tampered = "SET allow_system_table_mods = on; "
    postgres18.execute(tampered + label.format(2, "masked"), tampered + label.format(0, "all"))
    with closing(postgres18.connect()) as connection, connection.cursor() as cursor:
        found = attached_to(cursor, sql.Identifier("public", "orders"))
    postgres18.execute(tampered + "DELETE FROM pg_seclabel")
    column, table = (f"SECURITY LABEL FOR anon ON {on} IS " for on in ('COLUMN orders."E-Mail"', "TABLE orders"))
    assert sorted(found) == [
        (f"{column}NULL", f"{column}'it''s masked'"),
        (f"{table}NULL", f"{table}'it''s all'"),
    ]


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("CREATE TABLE items (of bigint REFERENCES orders)", r"stays with .*: constraint \S+ on table public\.items"),
        ("CREATE POLICY own ON roles USING (1 IN (SELECT id FROM orders))", r": policy own on table public\.roles"),
        ("CREATE FUNCTION paid(orders[]) RETURNS bool RETURN false", r": function public\.paid\(public\.orders\[\]\)"),
        ("ALTER TABLE parts ATTACH PARTITION orders DEFAULT", r": its place below public\.parts"),
        ("CREATE VIEW all_orders AS SELECT * FROM orders", r"views stay with .*: public\.all_orders"),
        ("CREATE PUBLICATION theirs FOR TABLE orders", "may not hand on: publication theirs"),
        ("CREATE TRIGGER t AFTER UPDATE ON orders EXECUTE FUNCTION theirs()", "may not hand on: trigger t"),
        ("ALTER TABLE orders ADD CONSTRAINT k FOREIGN KEY (id) REFERENCES roles", "may not hand on: foreign key k"),
    ],
)
def test_what_cannot_go_with_it_is_told(statement: str, told: str, postgres18: Database, store: PostgresStore) -> None:
    """Before anything is read; also by a swap and a rollback, where it came meanwhile."""
    store.beside(TABLE)
    store.swap(TABLE, Due("rebuilt", {}))
    store.beside(TABLE)
    postgres18.execute(*THERE, statement)
    for refused in (
        store.beside,
        lambda of: store.swap(of, Due("again", {})),
        lambda of: store.roll_back(of, Due("back", {})),
    ):
        with pytest.raises(OperatorError, match=told):
            refused(TABLE)


def test_a_reader_of_what_a_foreign_key_refers_to_is_waited_for_as_briefly(
    postgres18: Database, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is free for its own readers between two tries, and the session in the way is named."""
    monkeypatch.setattr(locks, "_TRY_MS", 200)
    monkeypatch.setattr(locks, "_WITHIN_S", 0)
    postgres18.execute(
        f"SET ROLE app_{postgres18.name}; CREATE TABLE customers (id bigint PRIMARY KEY);"
        " ALTER TABLE orders ADD FOREIGN KEY (id) REFERENCES customers"
    )
    store.beside(TABLE)
    with closing(postgres18.connect()) as reader:
        reader.cursor().execute("BEGIN; SELECT FROM customers")
        with pytest.raises(
            OperatorError, match=rf"public\.customers was being .* by the sessions with pid {reader.info.backend_pid}\n"
        ):
            store.swap(TABLE, Due("rebuilt", {}))
        reader.cursor().execute("SET lock_timeout = 100; SELECT FROM orders; COMMIT")
    store.swap(TABLE, Due("rebuilt", {}))


def test_what_keeps_the_previous_copy_is_told_before_anything_is_read(
    postgres18: Database, store: PostgresStore
) -> None:
    store.beside(TABLE)
    store.swap(TABLE, Due("rebuilt", {}))
    postgres18.execute("CREATE VIEW earlier AS SELECT * FROM cdc_apply.copy_1")
    with pytest.raises(OperatorError, match=r"cannot be dropped for rule _RETURN on view public\.earlier"):
        store.beside(TABLE)
    postgres18.execute("DROP VIEW earlier")
    store.beside(TABLE)


def test_what_keeps_a_column_narrow_or_a_table_unlogged_is_told(postgres18: Database) -> None:
    """What others have made of a column is named before the server refuses to widen it."""
    store = PostgresStore(Server(postgres18.url, "stores.copy"), "shop")
    store.open(TABLE)
    shown = {TABLE.qualified: Visibility(Mark({0: 1}, None), EVERYTHING)}
    store.fold([], shown)
    postgres18.execute("ALTER TABLE orders SET UNLOGGED")
    with pytest.raises(CopyError, match=r"table public\.orders is unlogged: a crash of the server") as told:
        store.fold([], shown)
    fix, _, _ = (told.value.hint or "").partition(";")
    postgres18.execute(fix)
    store.fold([], shown)
    for ours in ("waiting", "gone"):  # while the job runs, and before it starts
        postgres18.execute(f"ALTER TABLE cdc_apply.{ours}_1 SET UNLOGGED")
        with pytest.raises(CopyError, match=rf"table cdc_apply\.{ours}_1 is unlogged: a crash of the server"):
            store.fold([], shown)
        with pytest.raises(OperatorError, match="is unlogged") as told_of_ours:
            store.open(TABLE)
        postgres18.execute((told_of_ours.value.hint or "").partition(";")[0])
        store.fold([], shown)
    narrow = replace(TABLE, columns=(*TABLE.columns, replace(TABLE.columns[0], name="n", kind=Kind("int32"))))
    wide = replace(TABLE, columns=(*TABLE.columns, replace(TABLE.columns[0], name="n")))
    store.open(narrow)
    postgres18.execute(
        "CREATE INDEX ON orders ((n + 1)) WHERE n > 1",  # these follow by themselves
        "ALTER TABLE orders ADD CHECK (n > 0), ALTER n SET DEFAULT 5",
        "CREATE STATISTICS both_of_them ON id, n FROM orders",
    )
    made = {
        "column twice of table public.orders": "ALTER TABLE orders ADD twice int GENERATED ALWAYS AS (n * 2) STORED",
        "trigger noted on table public.orders": "CREATE TRIGGER noted BEFORE UPDATE OF n ON orders FOR EACH ROW"
        " EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "policy few on table public.orders": "CREATE POLICY few ON orders USING (n > 1)",
        "public.totals": "CREATE MATERIALIZED VIEW totals AS SELECT n FROM orders",
        "function public.all_n()": "CREATE FUNCTION all_n() RETURNS bigint BEGIN ATOMIC SELECT sum(n) FROM orders; END",
        "public.orders in publication p": f"CREATE PUBLICATION p_{postgres18.name} FOR TABLE orders (id, n)",
    }
    postgres18.execute(*made.values())
    with pytest.raises(OperatorError, match="keeps them from being widened: ") as told_all:
        store.open(wide)
    said = told_all.value.message.partition("widened: ")[2]
    assert {one for one in made if one in said} == {*made}, said
    postgres18.execute(
        "ALTER TABLE orders DROP twice",
        "DROP TRIGGER noted ON orders",
        "DROP POLICY few ON orders",
        "DROP MATERIALIZED VIEW totals",
        "DROP FUNCTION all_n",
        f"DROP PUBLICATION p_{postgres18.name}",
    )
    store.open(wide)
    store.close()


ALL_ROWS = "CREATE POLICY job ON orders USING (true) WITH CHECK (true)"


@pytest.mark.parametrize(
    ("policies", "hides"),
    [
        (("CREATE POLICY p ON orders USING (id <> 2) WITH CHECK (true)",), True),
        ((ALL_ROWS, "CREATE POLICY p ON orders AS RESTRICTIVE USING (id <> 2)"), True),
        (
            (
                "CREATE POLICY p ON orders FOR SELECT USING (true)",
                "CREATE POLICY q ON orders FOR INSERT WITH CHECK (true)",
            ),
            True,
        ),
        ((ALL_ROWS, "CREATE POLICY p ON orders USING (id <> 2)"), False),
        ((ALL_ROWS, "CREATE POLICY p ON orders AS RESTRICTIVE TO pg_monitor USING (id <> 2)"), False),
        (("CREATE POLICY p ON orders USING (current_user LIKE 'app%') WITH CHECK (id > 0)",), False),
        (
            (
                "CREATE POLICY p ON orders FOR SELECT USING (true)",
                "CREATE POLICY u ON orders FOR UPDATE USING (true)",
                "CREATE POLICY i ON orders FOR INSERT WITH CHECK (true)",
                "CREATE POLICY d ON orders FOR DELETE USING (current_user = 'dba')",
            ),
            True,
        ),
        ((ALL_ROWS, "CREATE POLICY d ON orders AS RESTRICTIVE FOR DELETE USING (current_user = 'dba')"), True),
        ((ALL_ROWS, "CREATE POLICY d ON orders AS RESTRICTIVE FOR DELETE USING (current_user LIKE 'app%')"), False),
        (("CREATE POLICY p ON orders USING (current_setting('app.t', true) = 'x') WITH CHECK (true)",), True),
        ((ALL_ROWS, "CREATE POLICY p ON orders USING (current_setting('app.t')::int = 1)"), False),
        ((ALL_ROWS, "CREATE POLICY p ON orders AS RESTRICTIVE USING (nextval('told') > 0)"), True),
        (("CREATE POLICY p ON orders WITH CHECK (true)",), True),
    ],
)
def test_rows_that_row_security_hides_from_the_job(
    postgres18: Database, policies: tuple[str, ...], *, hides: bool
) -> None:
    """A delete would not find its row, and its absence would not be seen; also where the policy comes while it runs."""
    shown = {TABLE.qualified: Visibility(Mark({0: 1}, None), EVERYTHING)}
    with user(postgres18) as url:
        store = PostgresStore(Server(url, "stores.copy"), "shop")
        store.open(TABLE)
        store.fold([], shown)
        postgres18.execute("CREATE SEQUENCE told", "GRANT ALL ON SEQUENCE told TO PUBLIC", *policies)
        store.fold([], shown)  # the owner is not bound
        postgres18.execute("ALTER TABLE orders ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
        if hides:
            said = f"row security can hide rows of it from the job’s user app_{postgres18.name}: what is deleted"
            with pytest.raises(CopyError, match=said):
                store.fold([], shown)
            with pytest.raises(OperatorError, match=said):
                store.open(TABLE)
            assert postgres18.rows("SELECT is_called FROM told") == [(False,)], "a look changes nothing"
            postgres18.execute(f"ALTER ROLE app_{postgres18.name} BYPASSRLS")  # as its hint says
        store.fold([], shown)
        store.open(TABLE)
        store.close()


_IDENTITIES = """
SELECT relname::text FROM pg_class WHERE relnamespace = 'cdc_apply'::regnamespace
AND relkind = 'r' AND relreplident = 'f' ORDER BY 1
"""


def test_a_job_that_does_not_own_its_tables_needs_their_owner_for_a_publication_alone(postgres18: Database) -> None:
    """Only the owner may alter them; and nobody wants old rows in the log where no publication has the tables."""
    shown = {TABLE.qualified: Visibility(Mark({0: 1}, None), EVERYTHING)}
    with closing(PostgresStore(Server(postgres18.url, "stores.copy"), "shop")) as owners:
        owners.open(TABLE)
        owners.fold([], shown)
    assert postgres18.rows(_IDENTITIES) == []
    with user(postgres18) as url:
        name = f"app_{postgres18.name}"
        postgres18.execute(
            f"GRANT ALL ON SCHEMA cdc_apply TO {name}",
            f"GRANT ALL ON ALL TABLES IN SCHEMA public, cdc_apply TO {name}",
            f"GRANT ALL ON ALL SEQUENCES IN SCHEMA cdc_apply TO {name}",
            "CREATE PUBLICATION of_orders FOR TABLE orders",
        )
        store = PostgresStore(Server(url, "stores.copy"), "shop")
        store.open(TABLE)
        store.fold([], shown)
        assert postgres18.rows(_IDENTITIES) == []
        postgres18.execute("CREATE PUBLICATION everything FOR ALL TABLES")
        with pytest.raises(OperatorError, match="must be owner of table waiting_1") as told:
            store.open(TABLE)
        owner, _, rest = (told.value.hint or "").partition(": ")
        assert owner == f"as {postgres18.rows('SELECT current_user::text')[0][0]}"
        postgres18.execute(rest.partition("; or ")[0])  # as its hint says
        assert postgres18.rows(_IDENTITIES) == [("gone_1",), ("waiting_1",)]
        store.open(TABLE)
        store.fold([], shown)
        store.close()


def test_names_of_types_are_not_quoted(postgres18: Database) -> None:
    """With `quote_all_identifiers` a server calls a text \"text\": that is no other type."""
    named = replace(TABLE, columns=(*TABLE.columns, replace(TABLE.columns[0], name="v", kind=Kind("string"))))
    postgres18.execute(f"ALTER DATABASE {postgres18.name} SET quote_all_identifiers = on")
    for _ in ("makes it", "finds it"):
        store = PostgresStore(Server(postgres18.url, "stores.copy"), "shop")
        store.open(named)
        store.close()


@pytest.mark.parametrize("mode", ["current", "history"])
def test_our_own_columns_come_back_by_a_rebuild(postgres18: Database, mode: str) -> None:
    """As the hint says where another hand has dropped them, taking them for rubbish."""
    made = replace(TABLE, history=mode == "history")
    shown = {TABLE.qualified: Visibility(Mark({0: 1}, None, version=1), EVERYTHING)}
    store = PostgresStore(Server(postgres18.url, "stores.copy"), "shop")
    store.open(made)
    store.fold([], shown)
    columns = (
        "SELECT attname::text, atttypid FROM pg_attribute"
        f" WHERE attrelid = '{made.copy_name}'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY 1"
    )
    had = postgres18.rows(columns)
    ours = [name for name, _ in had if str(name).startswith("_cdc_")]
    postgres18.execute(f"ALTER TABLE {made.copy_name} {', '.join(f'DROP {name}' for name in ours)}")
    with pytest.raises(OperatorError, match=r"has no column .*_cdc_position.* any more") as told:
        store.open(made)
    assert (told.value.hint or "").startswith("cdc rebuild APPLY.yaml --table public.orders")
    store.beside(made)
    store.swap(made, Due("rebuilt", {0: 1}))
    store.open(made)
    store.fold([], shown)
    assert postgres18.rows(columns) == had
    store.close()
