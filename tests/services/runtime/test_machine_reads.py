"""The machine's promises about reads, resolving and normalizing."""

from __future__ import annotations

from typing import Any

import pytest

from services.runtime import queries as queries_module
from services.runtime.machine import ApplyError
from tests.services.runtime import echo
from tests.services.runtime.echo import (
    GET,
    HIDE,
    PONDER,
    PROPOSALS,
    PUT,
    batch,
    command,
    message,
    parse,
    put_request,
    query,
)
from tests.services.runtime.harness import MALFORMED, MachineHarness, reasons
from viewstamp import framing
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.errors import details_of
from viewstamp.format.digest import StateDigest
from viewstamp.limits import MESSAGE_BYTES_MAX, READ_REFUSAL_BYTES


@pytest.fixture
def harness() -> MachineHarness:
    """A fresh harness."""
    return MachineHarness()


def test_queries_see_the_state_at_their_position(harness: MachineHarness) -> None:
    """A read between two spans sees the first and not the second."""
    asked = query(GET, message("GetRequest", name="a"), user_id=5)
    reply = harness.apply(
        command(PUT, put_request("a", "one")),
        asked,
        command(PUT, put_request("a", "two"), revision=2),
        asked,
    ).reply
    found = [
        parse("GetResponse", framing.unframe(reply.outcomes[i].query.results)[0]) for i in (1, 3)
    ]
    assert [(f.text, f.revision) for f in found] == [("one", 1), ("two", 2)]


def test_query_answers_are_sparse(harness: MachineHarness) -> None:
    """Refusals, holes and defects of reads are per index; contexts reach their reads."""
    harness.apply(command(PUT, put_request("a")))
    requests = [
        message("GetRequest", name="a"),
        message("GetRequest", name="none"),
        b"",
        message("GetRequest", fault="defect"),
        MALFORMED,
    ]
    contexts = framing.frame_all([b"seen", b"", b"", b"", b""])
    answer = harness.read(query(GET, *requests, refused=[2], contexts=contexts)).query
    assert reasons(answer.errors) == {1: "STREAM_NOT_FOUND", 3: "INTERNAL", 4: "MALFORMED_REQUEST"}
    results = [parse("GetResponse", r) for r in framing.unframe(answer.results)]
    assert [(r.text, r.context) for r in results] == [("a", b"seen")] + [("", b"")] * 4
    assert len(harness.machine.alarms) == 1


def test_reads_must_leave_no_trace(harness: MachineHarness) -> None:
    """A read or resolve that changes something is taken back and raises an alarm."""
    harness.apply(command(PUT, put_request("a")))
    request = message("GetRequest", name="a", fault="change")
    answer = harness.read(query(GET, request)).query
    resolved = harness.read(
        pb.Item(resolve=pb.ResolveItem(count=1, items=echo.frames(request), user_id=66))
    ).resolve
    assert reasons(answer.errors) == reasons(resolved.errors) == {0: "INTERNAL"}
    assert harness.texts() == {"a": "a"}
    assert len(harness.machine.alarms) == 2


def test_answers_fit_one_message(harness: MachineHarness) -> None:
    """Answers beyond the size of a message are refused, and later ones are not even computed."""
    harness.apply(command(PUT, put_request("a")))
    large, defect = (message("GetRequest", fault=fault) for fault in ("large", "defect"))
    answer = harness.read(query(GET, large, large, defect)).query
    assert reasons(answer.errors) == {1: "COMMAND_TOO_LARGE", 2: "COMMAND_TOO_LARGE"}
    assert not harness.machine.alarms


def test_refusals_take_room(harness: MachineHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that is refused thousands of times stops like one that is answered."""
    monkeypatch.setattr(queries_module, "READ_ANSWERS_BYTES_MAX", READ_REFUSAL_BYTES * 7 + 60)
    none = message("GetRequest", name="none")
    defect = message("GetRequest", fault="defect")
    harness.apply(command(PUT, put_request("a")))
    found = reasons(harness.read(query(GET, *[none] * 7, defect)).query.errors)
    assert set(list(found.values())[:-1]) == {"STREAM_NOT_FOUND", "COMMAND_TOO_LARGE"}
    assert found[7] == "COMMAND_TOO_LARGE"


def test_spans_of_a_read_share_one_message(harness: MachineHarness) -> None:
    """Room that a span has used is gone for later spans of the same read, not of another."""
    large = message("GetRequest", fault="large")
    items = [query(GET, large), query(GET, large, continues=True), query(GET, large)]
    answers = [o.query for o in harness.machine.apply(batch(0, *items)).reply.outcomes]
    assert [reasons(each.errors) for each in answers] == [{}, {0: "COMMAND_TOO_LARGE"}, {}]


def test_a_batch_without_room_postpones_reads(
    harness: MachineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads that come together are answered as far as a message holds; others are asked again."""
    monkeypatch.setattr(queries_module, "APPLY_ANSWERS_BYTES_MAX", 2 * MESSAGE_BYTES_MAX)
    large = message("GetRequest", fault="large")
    for _ in range(2):  # the next batch has its own room
        outcomes = harness.machine.apply(batch(0, *[query(GET, large)] * 4)).reply.outcomes
        assert [o.query.postponed for o in outcomes] == [False, False, True, True]
        assert not outcomes[3].query.results


class Impatient:
    """Lets reads begin, and go on, a given number of times."""

    def __init__(self, begins: int, calls: int) -> None:
        """Let so many reads begin, each with so many calls after its first."""
        self.begins_left, self.calls, self.calls_left = begins, calls, calls

    def begins(self) -> bool:
        """Count a read."""
        self.begins_left -= 1
        self.calls_left = self.calls
        return self.begins_left >= 0

    def is_gone(self) -> bool:
        """Count a call."""
        self.calls_left -= 1
        return self.calls_left < 0


@pytest.mark.parametrize("begins", [0, 1, 2])
def test_a_slice_ends_between_reads(harness: MachineHarness, begins: int) -> None:
    """The first read of a batch is answered in any case, and no read in part."""
    harness.apply(command(PUT, put_request("a")))
    get = message("GetRequest", name="a")
    parts = [query(GET, get, continues=continues) for continues in (False, True, False, True)]
    applied = harness.machine.apply(batch(0, *parts), Impatient(begins, 9))
    second = begins < 2
    found = [outcome.query.postponed for outcome in applied.reply.outcomes]
    assert found == [False, False, second, second]


def test_a_read_that_takes_long_is_answered_in_part(harness: MachineHarness) -> None:
    """The calls past its time are refused, with a time to come again, and never made."""
    harness.apply(command(PUT, put_request("a")))
    get, defect = message("GetRequest", name="a"), message("GetRequest", fault="defect")
    items = batch(0, query(GET, get, get, get, defect, defect), query(GET, get, get))
    first, second = (o.query for o in harness.machine.apply(items, Impatient(2, 2)).reply.outcomes)
    assert reasons(first.errors) == {3: "OVERLOADED", 4: "OVERLOADED"}
    assert "retry_delay_ms" in details_of(first.errors[0].error)
    assert reasons(second.errors) == {}
    assert not harness.machine.alarms


@pytest.mark.parametrize("fault", ["deep", "memory"])
def test_a_read_that_exhausts_the_process_is_a_defect(harness: MachineHarness, fault: str) -> None:
    """The read has changed nothing, so no process ends for it."""
    harness.apply(command(PUT, put_request("a")))
    answer = harness.read(query(GET, message("GetRequest", fault=fault))).query
    assert reasons(answer.errors) == {0: "INTERNAL"}
    assert len(harness.machine.alarms) == 1


def test_state_digest_is_the_digest_of_the_entities(harness: MachineHarness) -> None:
    """The builtin read returns the same digest as walking the entities."""
    empty = harness.read(pb.Item(query=pb.QueryItem(query_id=3))).query
    assert (empty.query_id, empty.state_digest) == (3, StateDigest().to_bytes())
    harness.apply(command(PUT, put_request("b"), put_request("a")))
    expected = StateDigest()
    expected.add(1, b"a", b"a\0002\0a")
    expected.add(1, b"b", b"b\0001\0b")
    expected.add(2, b"", b"3")
    assert harness.read(pb.Item(query=pb.QueryItem())).query.state_digest == expected.to_bytes()


def test_the_state_is_walked_once_between_changes(
    harness: MachineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Digests asked for by many at once cost one walk, and never outlive a change."""
    walks = []
    walk = harness.machine.state_digest

    def counted() -> bytes:
        walks.append(1)
        return walk()

    monkeypatch.setattr(harness.machine, "state_digest", counted)
    digest = pb.Item(query=pb.QueryItem(query_id=3))
    seen = []
    for name in "ab":
        harness.apply(command(PUT, put_request(name)))
        together = harness.machine.apply(batch(0, digest, digest)).reply.outcomes
        outcomes = (*together, harness.read(digest))
        seen.append({outcome.query.state_digest for outcome in outcomes})
    assert [len(values) for values in seen] == [1, 1]
    assert seen[0] != seen[1]
    assert len(walks) == 2


def test_deferred_reads_answer_later_from_their_own_revision(harness: MachineHarness) -> None:
    """A deferred span is marked in the reply and computed from the state at its position."""
    requests = [message("GetRequest", name="a"), message("GetRequest", name="a", fault="refuse")]
    applied = harness.apply(
        command(PUT, put_request("a", "then")),
        query(PONDER, *requests, message("GetRequest"), b"", refused=[3], query_id=8),
        command(PUT, put_request("a", "now"), revision=2),
    )
    assert applied.reply.outcomes[1].query == pb.QueryOutcome(query_id=8, deferred=True)
    (deferred,) = applied.deferred
    outcome = deferred.run()
    assert outcome.query_id == 8
    assert reasons(outcome.errors) == {1: "STREAM_EXISTS"}
    texts = [parse("GetResponse", r).text for r in framing.unframe(outcome.results)]
    assert texts == ["then", "", "", ""]


def test_deferred_span_keeps_errors_found_at_once(harness: MachineHarness) -> None:
    """The final answer has the refusals from before the wait, and a defect during it."""
    requests = [MALFORMED, message("GetRequest", name="a", fault="defect")]
    applied = harness.apply(query(PONDER, *requests))
    outcome = applied.deferred[0].run()
    assert reasons(outcome.errors) == {0: "MALFORMED_REQUEST", 1: "INTERNAL"}
    assert len(harness.machine.alarms) == 1


def test_span_answered_at_once_is_not_deferred(harness: MachineHarness) -> None:
    """A method that may defer need not."""
    applied = harness.apply(query(PONDER, message("GetRequest")))
    assert applied.deferred == []
    assert applied.reply.outcomes[0].query.results == framing.EMPTY_FRAME


def test_resolve_answers_per_item(harness: MachineHarness) -> None:
    """Contexts come per index, with holes and sparse errors."""
    harness.apply(command(PUT, put_request("a")))
    items = [message("GetRequest", name=name) for name in ("a", "none", "", "a")]
    resolve = pb.ResolveItem(count=4, items=echo.frames(*items), gate=3, refused=[2])  # type: ignore[arg-type]
    answer = harness.one(pb.Item(resolve=resolve)).resolve
    assert framing.unframe(answer.contexts) == [b"3:1", b"", b"", b"3:1"]
    assert reasons(answer.errors) == {1: "STREAM_NOT_FOUND"}


def test_resolve_of_grants_goes_to_its_own_handler(harness: MachineHarness) -> None:
    """Permissions are resolved item by item by the grants resolver."""
    resolve = pb.ResolveItem(count=2, items=echo.frames(b"x", b"y"), grants=True)
    answer = harness.one(pb.Item(resolve=resolve)).resolve
    assert framing.unframe(answer.contexts) == [b"X", b"Y"]


def test_resolve_checks_the_count(harness: MachineHarness) -> None:
    """A span of another number of items than claimed is refused by the resolving stage."""
    for items in (echo.frames(b"x"), b"\x0a\x7f"):
        answer = harness.one(pb.Item(resolve=pb.ResolveItem(count=2, items=items))).resolve
        assert reasons(answer.errors) == {0: "MALFORMED_REQUEST", 1: "MALFORMED_REQUEST"}


def test_all_proposals_are_told_on_demand(harness: MachineHarness) -> None:
    """A new primary gets every pending proposal, outside the log."""
    harness.apply(command(PUT, put_request("b"), put_request("a")))
    reply = harness.machine.apply(batch(0, PROPOSALS)).reply
    assert [p.request for p in reply.proposals] == [b"a", b"b"]
    assert not harness.apply().reply.proposals


def test_the_silent_are_told_on_demand(harness: MachineHarness) -> None:
    """A primary gets what has been silent for as long as it leads, and nothing that is pending."""
    harness.apply(command(PUT, put_request("ab"), put_request("a")))
    for elapsed_ms, expected in ((0, []), (2, [b"a"]), (3, [b"a", b"ab"])):
        item = pb.Item(
            proposals=pb.ProposalsItem(tenure=pb.Tenure(number=7, elapsed_ms=elapsed_ms))
        )
        reply = harness.machine.apply(batch(0, item)).reply
        assert [p.request for p in reply.proposals] == expected
        assert {p.due for p in reply.proposals} <= {7}
    assert not harness.apply().reply.proposals


def hide_span(*secrets: str | bytes, **fields: Any) -> pb.NormalizeRequest:
    """Return a normalize request for these secrets."""
    items = [s if isinstance(s, bytes) else message("HideRequest", secret=s) for s in secrets]
    fields.setdefault("session_id", 3)
    return pb.NormalizeRequest(code=HIDE, count=len(items), items=echo.frames(*items), **fields)


def test_normalize_replaces_payloads_and_refuses_sparsely(harness: MachineHarness) -> None:
    """Each index gets its loggable form or its error; nothing of the secret is left."""
    harness.apply(command(PUT, put_request("a"), revision=6))
    request = hide_span("tiger", "", MALFORMED, "bug", "defect", "refuse", number=2)
    response = harness.machine.normalize(request).run()
    assert response.revision == 6
    assert reasons(response.errors) == {
        1: "INVALID_PASSWORD",
        2: "MALFORMED_REQUEST",
        3: "INTERNAL",
        4: "INTERNAL",
        5: "STREAM_EXISTS",
    }
    items = framing.unframe(response.items)
    assert [bool(item) for item in items] == [True] + [False] * 5
    assert b"tiger" not in response.SerializeToString()
    assert len(harness.machine.alarms) == 2


def test_normalize_origin_is_the_same_on_a_retry(harness: MachineHarness) -> None:
    """Suffixes of a retry equal the first ones, and differ by session, number and index."""
    first = harness.machine.normalize(hide_span("x", "y", number=2, first_index=4)).run()
    again = harness.machine.normalize(
        hide_span("x", "y", number=2, first_index=4, suffix_only=True)
    ).run()
    assert list(again.suffixes) == list(first.suffixes)
    assert again.items == framing.EMPTY_FRAME * 2
    tokens = [parse("HideResponse", s.suffix).token for s in first.suffixes]
    origin = (3).to_bytes(8, "big") + (2).to_bytes(8, "big")
    assert tokens == [origin + (4).to_bytes(4, "big"), origin + (5).to_bytes(4, "big")]


def test_normalize_without_session_needs_a_nonce(harness: MachineHarness) -> None:
    """Secrets of callers without a session come from their nonce."""
    response = harness.machine.normalize(hide_span("x", session_id=0, nonce=b"n" * 16)).run()
    assert parse("HideResponse", response.suffixes[0].suffix).token == b"n" * 16 + bytes(4)
    with pytest.raises(ApplyError, match="a nonce of 0 bytes"):
        harness.machine.normalize(hide_span("x", session_id=0))


def test_normalize_knows_only_flagged_methods(harness: MachineHarness) -> None:
    """A method that needs no normalization is refused."""
    with pytest.raises(ApplyError, match="method code 900 is not normalized"):
        harness.machine.normalize(pb.NormalizeRequest(code=PUT))
