"""What the machine promises to every domain, shown on the echo domain."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.runtime.machine import Applied, Machine, ProtocolError
from tests.runtime import echo
from tests.runtime.echo import (
    GET,
    HIDE,
    KEEP,
    PONDER,
    PROPOSALS,
    PUT,
    REMOVE,
    REVERT,
    SAVEPOINT,
    batch,
    command,
    effect,
    message,
    parse,
    put_request,
    query,
)
from viewstamp import framing
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.format.digest import StateDigest
from viewstamp.limits import PREPARE_COMMANDS_MAX

MALFORMED = b"\x22\x05ab"  # a string of 5 bytes of which 2 are there
USERS, CONSUMER_GROUPS = 2, 4


class Harness:
    """A machine that is fed items, each call a batch with the next sequence."""

    def __init__(self) -> None:
        """Start with an empty machine."""
        self.machine = Machine(echo.DOMAIN)

    def apply(self, *items: pb.Item) -> Applied:
        """Apply the items as the next logged batch."""
        return self.machine.apply(batch(self.machine.sequence + 1, *items))

    def one(self, item: pb.Item) -> pb.Outcome:
        """Apply one item and return its outcome."""
        (outcome,) = self.apply(item).reply.outcomes
        return outcome

    def read(self, item: pb.Item) -> pb.Outcome:
        """Read outside the log and return the outcome."""
        (outcome,) = self.machine.apply(batch(0, item)).reply.outcomes
        return outcome

    def texts(self) -> dict[str, str]:
        """Return the words by name."""
        return {name: word.text for name, word in self.machine.state.words.rows.items()}


@pytest.fixture
def harness() -> Harness:
    """A fresh harness."""
    return Harness()


def put_results(outcome: pb.Outcome) -> list[Any]:
    """Return the decoded results of a span of Put."""
    return [parse("PutResponse", r) for r in framing.unframe(outcome.command.results)]


def reasons(errors: Any) -> dict[int, str]:
    """Return sparse errors as index -> reason."""
    return {e.index: Reason.Name(e.error.reason).removeprefix("REASON_") for e in errors}


def test_commands_get_consecutive_revisions_and_results(harness: Harness) -> None:
    """Each command of a span sees its own revision, and results come in order."""
    outcome = harness.one(command(PUT, *map(put_request, "abc"), revision=10))
    assert [(r.id, r.revision) for r in put_results(outcome)] == [(1, 10), (2, 11), (3, 12)]
    assert harness.machine.revision == 12


@pytest.mark.parametrize("count", [1, 7, 8, 200])
def test_results_are_framed_whatever_their_number(harness: Harness, count: int) -> None:
    """Few and many results are framed alike: one frame per index."""
    requests = [put_request(f"name-{i}", tell=False) for i in range(count)]
    results = put_results(harness.one(command(PUT, *requests)))
    assert [r.id for r in results] == list(range(1, count + 1))


def test_refused_indexes_are_holes(harness: Harness) -> None:
    """What an earlier stage refused is not applied, not an error here, and keeps its revision."""
    item = command(PUT, put_request("a"), b"", put_request("c"), refused=[1], revision=10)
    outcome = harness.one(item)
    assert [(r.id, r.revision) for r in put_results(outcome)] == [(1, 10), (0, 0), (2, 12)]
    assert not outcome.command.errors
    assert harness.texts() == {"a": "a", "c": "c"}


def test_malformed_item_is_refused_alone(harness: Harness) -> None:
    """One malformed item fails the typed parse, yet only that item is refused."""
    item = command(PUT, put_request("a"), MALFORMED, b"", put_request("d"), refused=[2])
    outcome = harness.one(item)
    assert reasons(outcome.command.errors) == {1: "MALFORMED_REQUEST"}
    assert [r.revision for r in put_results(outcome)] == [1, 0, 0, 4]


def test_malformed_text_is_refused(harness: Harness) -> None:
    """A string that is not UTF-8 is malformed, in words fixed here and not by a library."""
    outcome = harness.one(command(PUT, b"\x22\x01\xff"))
    (error,) = outcome.command.errors
    assert reasons([error]) == {0: "MALFORMED_REQUEST"}
    assert error.error.message == (
        "the bytes are not a viewstamp.tests.echo.v1.PutRequest: send its protobuf encoding"
    )


@pytest.mark.parametrize(
    ("requests", "count"), [(("a",), 2), (("a", "b", "c"), 2), ((), 2)], ids=str
)
def test_count_mismatch_refuses_all(
    harness: Harness, requests: tuple[str, ...], count: int
) -> None:
    """A span that holds more or fewer items than it claims is refused as a whole."""
    item = command(PUT, *map(put_request, requests), count=count)
    outcome = harness.one(item)
    assert reasons(outcome.command.errors) == dict.fromkeys(range(count), "MALFORMED_REQUEST")
    assert outcome.command.results == framing.EMPTY_FRAME * count
    assert harness.texts() == {}
    assert harness.machine.revision == count


def test_count_mismatch_among_malformed_items_refuses_all(harness: Harness) -> None:
    """The count is also checked where items are parsed one by one."""
    outcome = harness.one(command(PUT, put_request("a"), MALFORMED, count=3, refused=[0]))
    assert reasons(outcome.command.errors) == {1: "MALFORMED_REQUEST", 2: "MALFORMED_REQUEST"}


def test_unframed_items_refuse_all(harness: Harness) -> None:
    """Bytes that are no frames at all refuse every command of the span."""
    item = pb.Item(command=pb.CommandItem(code=PUT, count=2, first_revision=1, items=b"\x0a\x7f"))
    assert reasons(harness.one(item).command.errors) == {
        0: "MALFORMED_REQUEST",
        1: "MALFORMED_REQUEST",
    }


def test_unknown_fields_are_ignored(harness: Harness) -> None:
    """A field that a newer client sends is not an error."""
    encoded = put_request("a").SerializeToString() + b"\xa0\x06\x01"
    assert not harness.one(command(PUT, encoded)).command.errors


def test_empty_span_does_nothing(harness: Harness) -> None:
    """A span of no commands takes no revision and has no results."""
    outcome = harness.one(command(PUT, revision=4))
    assert outcome.HasField("command")
    assert outcome.command.results == b""
    assert harness.machine.revision == 0


def test_contexts_reach_their_commands(harness: Harness) -> None:
    """Each command sees the context of its own index."""
    contexts = framing.frame_all([b"one", b"", b"three"])
    item = command(PUT, *map(put_request, "abc"), contexts=contexts, refused=[1])
    assert [r.context for r in put_results(harness.one(item))] == [b"one", b"", b"three"]


@pytest.mark.parametrize("fault", ["refuse", "defect"])
def test_failed_command_leaves_nothing(harness: Harness, fault: str) -> None:
    """A command that fails after all its changes is taken back; those around it stand."""
    requests = [put_request("a"), put_request("b", fault=fault, tell=True), put_request("c")]
    applied = harness.apply(command(PUT, *requests))
    (outcome,) = applied.reply.outcomes
    expected = {"refuse": "STREAM_EXISTS", "defect": "INTERNAL"}[fault]
    assert reasons(outcome.command.errors) == {1: expected}
    assert [r.id for r in put_results(outcome)] == [1, 0, 2]
    assert harness.texts() == {"a": "a", "c": "c"}
    assert not outcome.command.effects
    assert not applied.reply.proposals


def test_defect_is_never_swallowed(harness: Harness) -> None:
    """A defect is kept for the shell, and answered in words that hold nothing of this process."""
    outcome = harness.one(command(PUT, put_request("a", fault="defect"), revision=9))
    (alarm,) = harness.machine.alarms
    assert (alarm.where, alarm.revision) == ("viewstamp.tests.echo.v1.EchoService/Put", 9)
    assert isinstance(alarm.defect, KeyError)
    assert "a bug" not in outcome.command.errors[0].error.message


def test_handler_without_answer_is_a_defect(harness: Harness) -> None:
    """A handler that returns no message is reverted like any other defect."""
    domain = echo.DOMAIN.__class__(
        **{
            **{name: getattr(echo.DOMAIN, name) for name in echo.DOMAIN.__dataclass_fields__},
            "commands": {**echo.DOMAIN.commands, "Remove": lambda state, request, call: None},
        }
    )
    machine: Machine[echo.State] = Machine(domain)
    reply = machine.apply(batch(1, command(REMOVE, message("RemoveRequest")))).reply
    assert reasons(reply.outcomes[0].command.errors) == {0: "INTERNAL"}


def test_troubles_of_the_process_are_not_answered(harness: Harness) -> None:
    """An operating-system error leaves apply, since other replicas do not share it."""
    with pytest.raises(OSError, match="the disk is gone"):
        harness.one(command(PUT, put_request("a", fault="disk")))


def test_validate_only_answers_and_leaves_nothing(harness: Harness) -> None:
    """A validated command answers as if it had succeeded; changes and effects are dropped."""
    before = harness.machine.state.snapshot()
    applied = harness.apply(command(PUT, put_request("a", tell=True, validate_only=True)))
    (outcome,) = applied.reply.outcomes
    assert [r.id for r in put_results(outcome)] == [1]
    assert not outcome.command.effects
    assert not applied.reply.proposals
    assert harness.machine.state.snapshot() == before
    assert harness.machine.revision == 1


def test_validate_only_keeps_what_the_savepoint_holds(harness: Harness) -> None:
    """Inside a savepoint only the validated command is taken back."""
    items = [command(PUT, put_request("a")), command(PUT, put_request("b", validate_only=True))]
    harness.apply(SAVEPOINT, *items, KEEP)
    assert harness.texts() == {"a": "a"}


def test_effects_come_in_command_order(harness: Harness) -> None:
    """Effects carry index and targets in the order of their commands; proposals follow suit."""
    requests = [put_request("a", tell=True), put_request("b"), put_request("c", tell=True)]
    reply = harness.apply(command(PUT, *requests)).reply
    effects = reply.outcomes[0].command.effects
    assert [(e.index, list(e.to)) for e in effects] == [
        (0, [CONSUMER_GROUPS, USERS]),
        (2, [CONSUMER_GROUPS, USERS]),
    ]
    assert [p.due for p in reply.proposals] == [1, 3]


def test_effects_change_state_in_item_order(harness: Harness) -> None:
    """An effect between two spans hits what came before it and nothing that comes after."""
    harness.apply(
        command(PUT, put_request("a")), effect(1, 2), command(PUT, put_request("b"), revision=3)
    )
    assert harness.texts() == {"b": "b"}
    assert harness.machine.revision == 3


@pytest.mark.parametrize("user_id", [13, 14])
def test_failing_effect_is_taken_back_with_an_alarm(harness: Harness, user_id: int) -> None:
    """An effect that raises or emits leaves no trace but its alarm, and its batch goes on."""
    harness.apply(*[command(PUT, put_request(f"w{i}"), revision=i + 1) for i in range(14)])
    reply = harness.apply(effect(user_id, 20), command(PUT, put_request("after"))).reply
    assert {f"w{user_id - 1}", "after"} <= set(harness.texts())
    assert reply.outcomes[0].HasField("done")
    assert not reply.proposals
    assert [alarm.where for alarm in harness.machine.alarms] == ["effect user_deleted"]


def test_savepoint_revert_restores_everything(harness: Harness) -> None:
    """Reverting restores entities, indexes, counters and held proposals, over several batches."""
    harness.apply(command(PUT, put_request("a", "old"), put_request("b")))
    before, digest = harness.machine.state.snapshot(), harness.machine.state_digest()
    harness.apply(SAVEPOINT, command(PUT, put_request("a", "new", tell=True), revision=3))
    harness.apply(command(REMOVE, message("RemoveRequest", name="b"), revision=3), effect(1, 3))
    reply = harness.apply(REVERT).reply
    assert harness.machine.state.snapshot() == before
    assert harness.machine.state_digest() == digest
    assert not reply.proposals
    assert not harness.machine.undo.entries


def test_savepoint_keep_lets_changes_and_proposals_stand(harness: Harness) -> None:
    """Proposals of a transaction come only once it is kept."""
    during = harness.apply(SAVEPOINT, command(PUT, put_request("a", tell=True))).reply
    after = harness.apply(KEEP).reply
    assert not during.proposals
    assert [p.due for p in after.proposals] == [1]
    assert harness.texts() == {"a": "a"}
    assert not harness.machine.undo.entries


def test_failed_command_in_a_savepoint_takes_back_only_itself(harness: Harness) -> None:
    """What the savepoint already holds survives a failed command until it is decided."""
    bad = command(PUT, put_request("b", fault="refuse"))
    harness.apply(SAVEPOINT, command(PUT, put_request("a")), bad)
    assert harness.texts() == {"a": "a"}
    harness.apply(REVERT)
    assert harness.texts() == {}


def test_queries_see_the_state_at_their_position(harness: Harness) -> None:
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


def test_query_answers_are_sparse(harness: Harness) -> None:
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


def test_reads_must_leave_no_trace(harness: Harness) -> None:
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


def test_answers_fit_one_message(harness: Harness) -> None:
    """Answers past the size of a message are refused, and a later small one still fits."""
    harness.apply(command(PUT, put_request("a")))
    large = message("GetRequest", fault="large")
    answer = harness.read(query(GET, large, large, message("GetRequest", name="a"))).query
    assert reasons(answer.errors) == {1: "COMMAND_TOO_LARGE"}


def test_state_digest_is_the_digest_of_the_entities(harness: Harness) -> None:
    """The builtin read returns what walking the entities gives."""
    empty = harness.read(pb.Item(query=pb.QueryItem(query_id=3))).query
    assert (empty.query_id, empty.state_digest) == (3, StateDigest().to_bytes())
    harness.apply(command(PUT, put_request("b"), put_request("a")))
    expected = StateDigest()
    expected.add(1, b"a", b"2:a")
    expected.add(1, b"b", b"1:b")
    assert harness.read(pb.Item(query=pb.QueryItem())).query.state_digest == expected.to_bytes()


def test_deferred_reads_answer_later_from_their_own_revision(harness: Harness) -> None:
    """A deferred span is marked in the reply and computed from what it read at its position."""
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


def test_deferred_span_keeps_errors_found_at_once(harness: Harness) -> None:
    """What was refused before the wait, and a defect during it, are in the final answer."""
    requests = [MALFORMED, message("GetRequest", name="a", fault="defect")]
    applied = harness.apply(query(PONDER, *requests))
    outcome = applied.deferred[0].run()
    assert reasons(outcome.errors) == {0: "MALFORMED_REQUEST", 1: "INTERNAL"}
    assert len(harness.machine.alarms) == 1


def test_span_answered_at_once_is_not_deferred(harness: Harness) -> None:
    """A method that may defer need not."""
    applied = harness.apply(query(PONDER, message("GetRequest")))
    assert applied.deferred == []
    assert applied.reply.outcomes[0].query.results == framing.EMPTY_FRAME


def test_resolve_answers_per_item(harness: Harness) -> None:
    """Contexts come per index, with holes and sparse errors."""
    harness.apply(command(PUT, put_request("a")))
    items = [message("GetRequest", name=name) for name in ("a", "none", "", "a")]
    resolve = pb.ResolveItem(count=4, items=echo.frames(*items), gate=3, refused=[2])  # type: ignore[arg-type]
    answer = harness.one(pb.Item(resolve=resolve)).resolve
    assert framing.unframe(answer.contexts) == [b"3:1", b"", b"", b"3:1"]
    assert reasons(answer.errors) == {1: "STREAM_NOT_FOUND"}


def test_resolve_of_grants_goes_to_its_own_handler(harness: Harness) -> None:
    """Permissions are resolved item by item by the grants resolver."""
    resolve = pb.ResolveItem(count=2, items=echo.frames(b"x", b"y"), grants=True)
    answer = harness.one(pb.Item(resolve=resolve)).resolve
    assert framing.unframe(answer.contexts) == [b"X", b"Y"]


def test_resolve_checks_the_count(harness: Harness) -> None:
    """A span of another number of items than claimed is refused by the resolving stage."""
    for items in (echo.frames(b"x"), b"\x0a\x7f"):
        answer = harness.one(pb.Item(resolve=pb.ResolveItem(count=2, items=items))).resolve
        assert reasons(answer.errors) == {0: "MALFORMED_REQUEST", 1: "MALFORMED_REQUEST"}


def test_all_proposals_are_told_on_demand(harness: Harness) -> None:
    """A new primary hears every pending proposal, outside the log."""
    harness.apply(command(PUT, put_request("b"), put_request("a")))
    reply = harness.machine.apply(batch(0, PROPOSALS)).reply
    assert [p.request for p in reply.proposals] == [b"a", b"b"]
    assert not harness.apply().reply.proposals


@pytest.mark.parametrize("sequence", [1, 3, 4])
def test_sequence_must_be_contiguous(harness: Harness, sequence: int) -> None:
    """A repeated or skipped batch is a breach of the protocol, and nothing of it is applied."""
    harness.apply(command(PUT, put_request("a")))
    if sequence == 4:
        harness.apply()
    with pytest.raises(ProtocolError, match="is due"):
        harness.machine.apply(batch(sequence, command(PUT, put_request("b"))))
    assert harness.texts() == {"a": "a"}


CONTEXTS_OF_TWO = framing.frame_all([b"x", b"y"])
UNKNOWN_EFFECT = pb.Item(effect=pb.EffectItem(payload=b"\x2a\x00"))

BREACHES: dict[str, tuple[pb.Item, str]] = {
    "unclaimed method": (command(echo.UNCLAIMED, b""), "command code 903 is not claimed"),
    "method of another stage": (command(echo.ELSEWHERE, b""), "command code 904 is not claimed"),
    "unknown query": (query(999, b""), "query code 999 is not claimed"),
    "item of no kind": (pb.Item(), "has no kind"),
    "cut": (pb.Item(cut=pb.CutItem(generation=4)), "cut 4"),
    "keep without savepoint": (KEEP, "no savepoint is open that could be kept"),
    "revert without savepoint": (REVERT, "no savepoint is open that could be reverted"),
    "too many": (command(PUT, count=PREPARE_COMMANDS_MAX + 1), "the gateway admits 8190"),
    "hole outside": (command(PUT, b"", refused=[1]), "index 1 is refused in a span of 1"),
    "contexts of another number": (command(PUT, b"", contexts=CONTEXTS_OF_TWO), "has 2 contexts"),
    "contexts unframed": (command(PUT, b"", contexts=b"\x0a\x7f"), "are not framed"),
    "malformed effect": (pb.Item(effect=pb.EffectItem(payload=b"\x0a\x7f")), "is malformed"),
    "unknown effect": (UNKNOWN_EFFECT, "effect stream_deleted of revision 0 has no handler"),
    "empty effect": (pb.Item(effect=pb.EffectItem()), "effect None of revision 0 has no handler"),
}


@pytest.mark.parametrize("name", BREACHES)
def test_breaches_of_the_protocol_are_loud(harness: Harness, name: str) -> None:
    """What a correct coordinator cannot send ends the machine, with what was wrong."""
    item, said = BREACHES[name]
    with pytest.raises(ProtocolError, match=said):
        harness.apply(item)


def test_savepoints_do_not_nest(harness: Harness) -> None:
    """A second savepoint is a breach of the protocol."""
    with pytest.raises(ProtocolError, match="open already"):
        harness.apply(SAVEPOINT, SAVEPOINT)


def test_reads_outside_the_log_change_nothing(harness: Harness) -> None:
    """A batch without a place in the log may not hold what changes state."""
    with pytest.raises(ProtocolError, match="holds a command"):
        harness.machine.apply(batch(0, command(PUT, put_request("a"))))


def test_unknown_feature_level_is_refused(harness: Harness) -> None:
    """A build does not guess what a level it does not know would have it do."""
    with pytest.raises(ProtocolError, match="feature level 2 is in force"):
        harness.machine.apply(pb.Batch(sequence=1, feature_level=2))


def test_domain_without_resolvers_says_so() -> None:
    """A resolve item at a stage that resolves nothing is a breach of the protocol."""
    fields = {name: getattr(echo.DOMAIN, name) for name in echo.DOMAIN.__dataclass_fields__}
    fields |= {"resolve": None, "resolve_grants": None}
    for grants, said in ((True, "permissions"), (False, "streams and topics")):
        machine: Machine[echo.State] = Machine(echo.DOMAIN.__class__(**fields))
        with pytest.raises(ProtocolError, match=f"does not resolve {said}"):
            machine.apply(batch(1, pb.Item(resolve=pb.ResolveItem(count=1, grants=grants))))


def test_describe_claims_what_has_a_handler(harness: Harness) -> None:
    """Methods without a handler and methods of other stages are not claimed."""
    description = harness.machine.describe()
    service = "viewstamp.tests.echo.v1.EchoService/"
    assert list(description.methods) == [
        service + name for name in ("Put", "Remove", "Hide", "Get", "Ponder")
    ]
    assert (description.stage, description.section_version) == (3, 7)


BAD_DOMAINS: dict[str, tuple[dict[str, Any], str]] = {
    "handler without method": (
        {"commands": {**echo.DOMAIN.commands, "Putt": echo.put}},
        "command handlers that nothing in the protos calls for: Putt",
    ),
    "handler of another stage's": (
        {"commands": {**echo.DOMAIN.commands, "Elsewhere": echo.put}},
        "command handlers that nothing in the protos calls for: Elsewhere",
    ),
    "no normalizer": ({"normalizers": {}, "suffixes": {}}, "without a normalizer: Hide"),
    "unused suffix": ({"suffixes": {"Put": echo.hide_suffix}}, "suffixes that nothing"),
    "unknown effect": ({"effects": {"sun_down": echo.user_deleted}}, "effects that nothing"),
    "twice": ({"files": [echo.FILE, echo.FILE]}, "command methods share a name: "),
}


@pytest.mark.parametrize("name", BAD_DOMAINS)
def test_domain_that_is_not_whole_does_not_start(name: str) -> None:
    """Handlers that do not fit the protos are found at start, not at the first command."""
    changed, said = BAD_DOMAINS[name]
    fields = {name: getattr(echo.DOMAIN, name) for name in echo.DOMAIN.__dataclass_fields__}
    with pytest.raises(ValueError, match=said):
        Machine(echo.DOMAIN.__class__(**(fields | changed)))


def hide_span(*secrets: str | bytes, **fields: Any) -> pb.NormalizeRequest:
    """Return a normalize request for these secrets."""
    items = [s if isinstance(s, bytes) else message("HideRequest", secret=s) for s in secrets]
    fields.setdefault("session_id", 3)
    return pb.NormalizeRequest(code=HIDE, count=len(items), items=echo.frames(*items), **fields)


def test_normalize_replaces_payloads_and_refuses_sparsely(harness: Harness) -> None:
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


def test_normalize_origin_is_the_same_on_a_retry(harness: Harness) -> None:
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


def test_normalize_without_session_needs_a_nonce(harness: Harness) -> None:
    """Secrets of callers without a session come from their nonce."""
    response = harness.machine.normalize(hide_span("x", session_id=0, nonce=b"n" * 16)).run()
    assert parse("HideResponse", response.suffixes[0].suffix).token == b"n" * 16 + bytes(4)
    with pytest.raises(ProtocolError, match="a nonce of 0 bytes"):
        harness.machine.normalize(hide_span("x", session_id=0))


def test_normalize_knows_only_flagged_methods(harness: Harness) -> None:
    """A method that needs no normalization is refused."""
    with pytest.raises(ProtocolError, match="method code 900 is not normalized"):
        harness.machine.normalize(pb.NormalizeRequest(code=PUT))


Step = tuple[str, str, str]
names = st.sampled_from("abcdefgh")
steps = st.one_of(
    st.tuples(st.just("put"), names, names),
    st.tuples(st.just("validate"), names, names),
    st.tuples(st.just("fail"), names, names),
    st.tuples(st.just("remove"), names, st.just("")),
    st.tuples(st.sampled_from(["savepoint", "keep", "revert"]), st.just(""), st.just("")),
)


def item_of(step: Step, revision: int) -> pb.Item:
    """Return the item of one command step."""
    kind, name, text = step
    if kind == "remove":
        return command(REMOVE, message("RemoveRequest", name=name), revision=revision)
    fault = "defect" if kind == "fail" else ""
    request = put_request(name, text, fault=fault, validate_only=kind == "validate")
    return command(PUT, request, revision=revision)


@given(st.lists(steps, max_size=40))
def test_random_changes_equal_a_dict(taken: list[Step]) -> None:
    """Any mix of puts, removals, failures and savepoints equals a dict that is copied and put back.

    The index and the sorted keys must follow, whatever was taken back.
    """
    harness, model, saved = Harness(), dict[str, str](), None
    for revision, step in enumerate(taken, 1):
        kind, name, text = step
        if kind in ("savepoint", "keep", "revert"):
            if (kind == "savepoint") == (saved is not None):
                continue
            harness.apply(pb.Item(**{kind: {}}))  # type: ignore[arg-type]
            model = saved if kind == "revert" and saved is not None else model
            saved = dict(model) if kind == "savepoint" else None
            continue
        harness.apply(item_of(step, revision))
        if kind == "put":
            model[name] = text
        elif kind == "remove":
            model.pop(name, None)
        assert harness.texts() == model
        assert harness.machine.state.words.sorted_keys() == sorted(model)
    assert harness.texts() == model
    assert set(harness.machine.state.by_text.rows) == set(
        harness.machine.state.by_text.sorted_keys()
    )


@given(st.lists(steps.filter(lambda step: step[1] != ""), max_size=20))
def test_batching_does_not_matter(taken: list[Step]) -> None:
    """The same commands give the same results and state in one batch or in one batch each."""
    items = [item_of(step, revision) for revision, step in enumerate(taken, 1)]
    together, apart = Harness(), Harness()
    outcomes = list(together.apply(*items).reply.outcomes)
    assert outcomes == [apart.one(item) for item in items]
    assert together.machine.state_digest() == apart.machine.state_digest()
    assert together.machine.state.snapshot() == apart.machine.state.snapshot()
