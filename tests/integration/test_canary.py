"""The checker of secrets finds one wherever one is planted: a checker that cannot fail proves nothing."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.canary import CANARY, Watch
from tests.conftest import Database
from tests.integration.connector import Connector
from tests.integration.running import eventually


def test_a_planted_secret_is_found(kafka: str, prefix: str, tmp_path: Path) -> None:
    """In what a process printed, in a server's log, in a command line, in a record's key, value or header."""
    secret, printed = f"planted-{uuid.uuid4().hex}", tmp_path / "printed"
    printed.mkdir()
    log = tmp_path / "server.log"
    log.write_text("nothing\n")
    watch = Watch(secret)
    watch.publishes(kafka, prefix)
    watch.start(printed)
    watch.tee("run", "nothing")
    assert watch.found([log]) == []
    watch.tee("run", f"connecting to postgresql://u:{secret}@h/d")
    log.write_text(f"ALTER ROLE u PASSWORD '{secret}'\n")
    process = subprocess.Popen([sys.executable, "-c", "input()", secret], stdin=subprocess.PIPE)
    eventually(watch.in_command_lines, "the process is seen")
    eventually(lambda: any("command line" in place for place in watch.found([log])), "the sampler has seen it")
    process.communicate(b"\n")
    watch.stop()
    producer = Producer({"bootstrap.servers": kafka, "allow.auto.create.topics": "false"})
    names = [f"{prefix}.{part}" for part in ("key", "value", "header", "none")]
    admin = AdminClient({"bootstrap.servers": kafka})
    for made in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        made.result(30)
    producer.produce(names[0], b"v", f"k{secret}".encode())
    producer.produce(names[1], f'{{"password":"{secret}"}}'.encode(), b"k")
    producer.produce(names[2], b"v", b"k", headers=[("h", secret.encode())])
    producer.produce(names[3], b"v", b"k")
    producer.flush(30)
    places = watch.found([log])
    assert [place for place in places if place.startswith("topic")] == sorted(f"topic {name}" for name in names[:3])
    assert sum(place.startswith("file") for place in places) == 2
    assert sum(place.startswith("command line") for place in places) == 1


def test_the_connectors_do_use_it(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """The secret that is looked for is the one they log in with; refused with another, they do not repeat it."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"])
    assert CANARY in connector.environment["TEST_DATABASE_URL"]
    connector.catch_up()
    url = connector.environment["TEST_DATABASE_URL"]
    connector.environment["TEST_DATABASE_URL"] = url.replace(CANARY, f"{CANARY}x")
    done = connector.cdc("run", "FILE", "--until-caught-up")
    assert done.returncode == 1
    assert "refuses the password" in done.stderr
    assert CANARY not in done.stdout + done.stderr
