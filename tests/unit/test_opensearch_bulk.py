"""What a server says of a bulk request: what waits, what one document is refused for, and what stops. No server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opensearchpy.exceptions import AuthorizationException, ConnectionTimeout, RequestError, TransportError

from cdc.model.errors import OperatorError, RetryableError
from spark_apply.model.store import Refused
from spark_apply.spark.failures import StoreAwayError
from spark_apply.stores.opensearch import bulk as opensearch_bulk
from spark_apply.stores.opensearch.bulk import Action, Bulk, Patience
from spark_apply.stores.opensearch.fields import column_name, field_name
from spark_apply.stores.opensearch.indexes import Indexes
from spark_apply.stores.opensearch.store import OpenSearchStore

TOO_LARGE = TransportError(413, "", "")
TOO_DEEP = RequestError(400, "x_content_parse_exception", {"error": {"type": "x_content_parse_exception"}})
FLOOD = (
    "index [shop.public.orders.0] blocked by: [TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage watermark, "
    "index has read-only-allow-delete block];"
)
Answer = dict[str, Any]


def answer(status: int, kind: str | None = None, reason: str = "") -> Answer:
    error = {} if kind is None else {"error": {"type": kind, "reason": reason}}
    return {"index": {"status": status, **error}}


class Server:
    """Answers each document by its text, as often as it is asked; a request is refused by its worst document."""

    def __init__(self, answers: dict[bytes, list[Answer | Exception]]) -> None:
        self.answers = answers
        self.requests = 0

    def bulk(self, *, body: bytes, index: str, require_alias: bool, pipeline: str) -> dict[str, Any]:
        assert (index, require_alias, pipeline) == ("orders", True, "_none")
        self.requests += 1
        documents = body.split(b"\n")[1::2]
        items = []
        for document in documents:
            left = self.answers.get(document, [answer(201)])
            found = left[0] if len(left) == 1 else left.pop(0)
            if isinstance(found, Exception):
                raise found
            items.append(found)
        return {"items": items}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opensearch_bulk.time, "sleep", lambda _s: None)


def sent(answers: dict[bytes, list[Answer | Exception]], *documents: bytes) -> tuple[list[Any], int]:
    server: Any = Server(answers)
    request = [Action(b"{}", document, 0, offset) for offset, document in enumerate(documents)]
    return list(Bulk(server, "orders", Patience()).send(request)), server.requests


@pytest.mark.parametrize(("error", "why"), [(TOO_LARGE, "it is too large"), (TOO_DEEP, "x_content_parse_exception")])
def test_a_document_for_which_the_whole_request_is_refused(error: Exception, why: str) -> None:
    found, _ = sent({b"bad": [error]}, *[b"good"] * 5, b"bad", *[b"good"] * 6)
    assert [one for one in found if isinstance(one, Refused)] == [Refused(0, 5, f"OpenSearch does not take it: {why}")]
    assert found.count(("index", 201)) == 11


@pytest.mark.parametrize("kind", ["mapper_parsing_exception", "illegal_argument_exception", "strict_dynamic_mapping"])
def test_a_document_that_is_refused_alone(kind: str) -> None:
    found, requests = sent({b"bad": [answer(400, kind, "a value")]}, b"good", b"bad")
    assert found == [("index", 201), Refused(0, 1, f"OpenSearch does not take it: {kind}")]
    assert requests == 1
    assert sent({b"bad": [answer(500, "stack_overflow_error")]}, b"good", b"bad")[0][-1].reason.endswith(
        "overflow_error"
    )


@pytest.mark.parametrize(
    ("passing", "cause"),
    [
        (answer(429, "cluster_block_exception", FLOOD), "disk usage exceeded flood-stage watermark"),
        (answer(403, "cluster_block_exception", FLOOD), "disk usage exceeded flood-stage watermark"),
        (answer(503, "unavailable_shards_exception"), "a primary shard is not active (the index is red)"),
        (answer(429, "es_rejected_execution_exception"), "the server has too many requests"),
        (answer(429, "circuit_breaking_exception"), "the server has too little memory"),
        (TransportError(429, "", ""), "status 429"),
        (TransportError(503, "cluster_manager_not_discovered_exception",
                        {"error": {"type": "cluster_manager_not_discovered_exception"}}), "the cluster has no manager"),
    ],
)  # fmt: skip
def test_what_passes_is_waited_for_with_its_name(passing: Answer | Exception, cause: str) -> None:
    found, requests = sent({b"row": [passing, passing, answer(201)]}, b"row", b"other")
    assert found.count(("index", 201)) == 2
    assert requests == 3
    with pytest.raises(RetryableError) as told:
        sent({b"row": [passing]}, b"row", b"other")
    assert cause in str(told.value)
    assert "value" not in str(told.value)


def test_an_answer_that_does_not_come_is_waited_for_once() -> None:
    """It takes a minute each time, of all tables in all stores."""
    with pytest.raises(StoreAwayError) as told:
        sent({b"row": [ConnectionTimeout("N/A", "the url and a value", Exception()), answer(201)]}, b"row", b"other")
    assert "ConnectionTimeout" in str(told.value)
    assert "value" not in str(told.value)


def test_a_server_that_takes_nothing_is_waited_for_once_by_all_its_indexes() -> None:
    full = answer(429, "cluster_block_exception", FLOOD)
    failing = answer(500, "stack_overflow_error")
    server: Any = Server({b"row": [full], b"bad": [failing]})
    bulk = Bulk(server, "orders", Patience())

    def tried(*documents: bytes) -> int:
        before = server.requests
        with pytest.raises(RetryableError):
            list(bulk.send([Action(b"{}", document, 0, 0) for document in documents]))
        return int(server.requests - before)

    assert [tried(b"row") for _ in range(3)] == [8, 1, 1]
    assert tried(b"row", b"bad") == 1, "and a document that fails may be another one's fault then"
    assert tried(b"row", b"good") == 1
    assert tried(b"row") == 8, "it has taken something"
    assert tried(b"row") == 1
    server.answers = {b"bad": [failing]}
    assert tried(b"good", b"bad") == 1
    found = list(bulk.send([Action(b"{}", document, 0, 0) for document in (b"good", b"bad")]))
    assert [type(one) for one in found] == [tuple, Refused]


def test_what_is_of_the_whole_index_stops() -> None:
    for lasting in (answer(403, "security_exception"), answer(400, "index_closed_exception")):
        with pytest.raises(OperatorError, match="index orders refused a document"):
            sent({b"row": [lasting]}, b"row")
    with pytest.raises(OperatorError, match="status 401"):
        sent({b"row": [TransportError(401, "no", {})]}, b"row")


@given(st.lists(st.text(max_size=12) | st.text("_.%*? a2E5Fid\u00a0\t", max_size=8), unique=True, max_size=8))
def test_fields_are_named_one_to_one(columns: list[str]) -> None:
    fields = [field_name(column) for column in columns]
    assert [column_name(field) for field in fields] == columns
    assert len(set(fields)) == len(columns)
    for field in fields:
        assert field.strip()
        assert not field.startswith("_")
        assert not {"*", "."} & set(field)


def test_an_index_that_a_user_may_not_flush_says_what_is_needed() -> None:
    """The password is right: the hint names the right, and the other way."""

    def refuse(**_: str) -> None:
        raise AuthorizationException(403, "security_exception", {})

    client: Any = SimpleNamespace(indices=SimpleNamespace(flush=refuse))
    with pytest.raises(OperatorError, match=r"cannot be flushed \(status 403") as told:
        OpenSearchStore(client, "shop", {})._flush("shop.public.orders")
    for words in ("indices:admin/flush", "-X PUT '<url>/shop.public.orders/_settings'"):
        assert words in (told.value.hint or "")


def test_an_index_that_is_blocked_and_cannot_be_flushed_is_no_matter_of_rights() -> None:
    def refuse(**_: str) -> None:
        about = {"type": "cluster_block_exception", "reason": "blocked by: [FORBIDDEN/8/index write (api)];"}
        raise AuthorizationException(403, "cluster_block_exception", {"error": about})

    client: Any = SimpleNamespace(indices=SimpleNamespace(flush=refuse))
    with pytest.raises(RetryableError) as told:
        OpenSearchStore(client, "shop", {})._flush("shop.public.orders")
    assert "somebody has set index.blocks.write" in (told.value.hint or "")


@pytest.mark.parametrize(
    ("settings", "how"),
    [
        ({}, {}),
        ({"index.replication.type": "DOCUMENT", "index.search.default_pipeline": "_none"}, {}),
        ({"index.replication.type": "SEGMENT"}, {"preference": "_primary"}),
        ({"index.search.default_pipeline": "theirs"}, {"search_pipeline": "_none"}),
    ],
)
def test_a_copy_is_read_as_it_is(settings: dict[str, str], how: dict[str, str]) -> None:
    """Not as a replica shows it that is behind, nor as a pipeline leaves it; what old servers do not know is not sent.

    See https://github.com/opensearch-project/OpenSearch/issues/9566.
    """

    def get_settings(*, name: str, **_: object) -> dict[str, Any]:
        asked = {"index.uuid": "u", **settings}
        return {"shop.0": {"settings": {of: value for of, value in asked.items() if of in name.split(",")}}}

    client: Any = SimpleNamespace(indices=SimpleNamespace(get_settings=get_settings))
    assert Indexes(client, {}).read_at_once("shop") == ("shop.0", 2_000, how)
