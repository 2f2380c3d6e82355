"""The machine's promises to every domain about commands, effects and savepoints."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.runtime.machine import Machine
from tests.services.runtime import echo
from tests.services.runtime.echo import (
    KEEP,
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
)
from tests.services.runtime.harness import MALFORMED, MachineHarness, reasons
from viewstamp import framing
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.errors import Refusal

USERS, CONSUMER_GROUPS = 2, 4


@pytest.fixture
def harness() -> MachineHarness:
    """A fresh harness."""
    return MachineHarness()


def put_results(outcome: pb.Outcome) -> list[Any]:
    """Return the decoded results of a span of Put."""
    return [parse("PutResponse", r) for r in framing.unframe(outcome.command.results)]


def test_commands_get_consecutive_revisions_and_results(harness: MachineHarness) -> None:
    """Each command of a span sees its own revision, and results come in order."""
    outcome = harness.one(command(PUT, *map(put_request, "abc"), revision=10))
    assert [(r.id, r.revision) for r in put_results(outcome)] == [(1, 10), (2, 11), (3, 12)]
    assert harness.machine.revision == 12


@pytest.mark.parametrize("count", [1, 7, 8, 200])
def test_results_are_framed_whatever_their_number(harness: MachineHarness, count: int) -> None:
    """Few and many results are framed alike: one frame per index."""
    requests = [put_request(f"name-{i}", tell=False) for i in range(count)]
    results = put_results(harness.one(command(PUT, *requests)))
    assert [r.id for r in results] == list(range(1, count + 1))


def test_refused_indexes_are_holes(harness: MachineHarness) -> None:
    """A command that an earlier stage refused is not applied, is no error, and keeps its
    revision."""
    item = command(PUT, put_request("a"), b"", put_request("c"), refused=[1], revision=10)
    outcome = harness.one(item)
    assert [(r.id, r.revision) for r in put_results(outcome)] == [(1, 10), (0, 0), (2, 12)]
    assert not outcome.command.errors
    assert harness.texts() == {"a": "a", "c": "c"}


def test_malformed_item_is_refused_alone(harness: MachineHarness) -> None:
    """One malformed item fails the typed parse, yet only that item is refused."""
    item = command(PUT, put_request("a"), MALFORMED, b"", put_request("d"), refused=[2])
    outcome = harness.one(item)
    assert reasons(outcome.command.errors) == {1: "MALFORMED_REQUEST"}
    assert [r.revision for r in put_results(outcome)] == [1, 0, 0, 4]


def test_refused_index_is_not_refused_again(harness: MachineHarness) -> None:
    """An item at a refused index is not examined, malformed or not."""
    outcome = harness.one(command(PUT, MALFORMED, MALFORMED, refused=[0]))
    assert reasons(outcome.command.errors) == {1: "MALFORMED_REQUEST"}


def test_malformed_text_is_refused(harness: MachineHarness) -> None:
    """A string that is not UTF-8 is malformed, without words of a library."""
    outcome = harness.one(command(PUT, b"\x22\x01\xff"))
    (error,) = outcome.command.errors
    assert reasons([error]) == {0: "MALFORMED_REQUEST"}
    assert error.error.message == ""
    assert Refusal.from_error(error.error).message == (
        "the bytes are not a viewstamp.tests.echo.v1.PutRequest: send its protobuf encoding"
    )


@pytest.mark.parametrize(
    ("requests", "count"), [(("a",), 2), (("a", "b", "c"), 2), ((), 2)], ids=str
)
def test_count_mismatch_refuses_all(
    harness: MachineHarness, requests: tuple[str, ...], count: int
) -> None:
    """A span that holds more or fewer items than it claims is refused as a whole."""
    item = command(PUT, *map(put_request, requests), count=count)
    outcome = harness.one(item)
    assert reasons(outcome.command.errors) == dict.fromkeys(range(count), "MALFORMED_REQUEST")
    assert outcome.command.results == framing.EMPTY_FRAME * count
    assert harness.texts() == {}
    assert harness.machine.revision == count


def test_count_mismatch_among_malformed_items_refuses_all(harness: MachineHarness) -> None:
    """The count is also checked where items are parsed one by one."""
    outcome = harness.one(command(PUT, put_request("a"), MALFORMED, count=3, refused=[0]))
    assert reasons(outcome.command.errors) == {1: "MALFORMED_REQUEST", 2: "MALFORMED_REQUEST"}


def test_unframed_items_refuse_all(harness: MachineHarness) -> None:
    """Bytes that are no frames at all refuse every command of the span."""
    item = pb.Item(command=pb.CommandItem(code=PUT, count=2, first_revision=1, items=b"\x0a\x7f"))
    assert reasons(harness.one(item).command.errors) == {
        0: "MALFORMED_REQUEST",
        1: "MALFORMED_REQUEST",
    }


def test_unknown_fields_are_ignored(harness: MachineHarness) -> None:
    """A field that a newer client sends is not an error."""
    encoded = put_request("a").SerializeToString() + b"\xa0\x06\x01"
    assert not harness.one(command(PUT, encoded)).command.errors


def test_empty_span_does_nothing(harness: MachineHarness) -> None:
    """A span of no commands takes no revision and has no results."""
    outcome = harness.one(command(PUT, revision=4))
    assert outcome.HasField("command")
    assert outcome.command.results == b""
    assert harness.machine.revision == 0


def test_contexts_reach_their_commands(harness: MachineHarness) -> None:
    """Each command sees the context of its own index."""
    contexts = framing.frame_all([b"one", b"", b"three"])
    item = command(PUT, *map(put_request, "abc"), contexts=contexts, refused=[1])
    assert [r.context for r in put_results(harness.one(item))] == [b"one", b"", b"three"]


@pytest.mark.parametrize("fault", ["refuse", "defect"])
def test_failed_command_leaves_nothing(harness: MachineHarness, fault: str) -> None:
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


def test_defect_is_never_swallowed(harness: MachineHarness) -> None:
    """A defect is kept for the shell, and answered in words that hold nothing of this process."""
    outcome = harness.one(command(PUT, put_request("a", fault="defect"), revision=9))
    (alarm,) = harness.machine.alarms
    assert (alarm.where, alarm.revision) == ("viewstamp.tests.echo.v1.EchoService/Put", 9)
    assert isinstance(alarm.defect, KeyError)
    assert "a bug" not in outcome.command.errors[0].error.message


def test_handler_without_answer_is_a_defect(harness: MachineHarness) -> None:
    """A handler that returns no message is reverted like any other defect."""
    domain = echo.DOMAIN.__class__(
        **{
            **{name: getattr(echo.DOMAIN, name) for name in echo.DOMAIN.__dataclass_fields__},
            "commands": {**echo.DOMAIN.commands, "Remove": lambda state, request, call: None},
        }
    )
    machine: Machine[echo.EchoState] = Machine(domain)
    reply = machine.apply(batch(1, command(REMOVE, message("RemoveRequest")))).reply
    assert reasons(reply.outcomes[0].command.errors) == {0: "INTERNAL"}


def test_troubles_of_the_process_are_not_answered(harness: MachineHarness) -> None:
    """An operating-system error leaves apply, since other replicas do not share it."""
    with pytest.raises(OSError, match="the disk is gone"):
        harness.one(command(PUT, put_request("a", fault="disk")))


def test_validate_only_answers_and_leaves_nothing(harness: MachineHarness) -> None:
    """A validated command answers as if it had succeeded; changes and effects are dropped."""
    before = harness.machine.state.snapshot()
    applied = harness.apply(command(PUT, put_request("a", tell=True, validate_only=True)))
    (outcome,) = applied.reply.outcomes
    assert [r.id for r in put_results(outcome)] == [1]
    assert not outcome.command.effects
    assert not applied.reply.proposals
    assert harness.machine.state.snapshot() == before
    assert harness.machine.revision == 1


def test_validate_only_keeps_what_the_savepoint_holds(harness: MachineHarness) -> None:
    """Inside a savepoint only the validated command is taken back."""
    items = [command(PUT, put_request("a")), command(PUT, put_request("b", validate_only=True))]
    harness.apply(SAVEPOINT, *items, KEEP)
    assert harness.texts() == {"a": "a"}


def test_effects_come_in_command_order(harness: MachineHarness) -> None:
    """Effects carry index and targets in the order of their commands; proposals follow suit."""
    requests = [put_request("a", tell=True), put_request("b"), put_request("c", tell=True)]
    reply = harness.apply(command(PUT, *requests)).reply
    effects = reply.outcomes[0].command.effects
    assert [(e.index, list(e.to)) for e in effects] == [
        (0, [CONSUMER_GROUPS, USERS]),
        (2, [CONSUMER_GROUPS, USERS]),
    ]
    assert [p.due for p in reply.proposals] == [1, 3]


def test_effects_change_state_in_item_order(harness: MachineHarness) -> None:
    """An effect between two spans changes the rows before it and none that come after."""
    harness.apply(
        command(PUT, put_request("a")), effect(1, 2), command(PUT, put_request("b"), revision=3)
    )
    assert harness.texts() == {"b": "b"}
    assert harness.machine.revision == 3


@pytest.mark.parametrize("user_id", [13, 14])
def test_failing_effect_is_taken_back_with_an_alarm(harness: MachineHarness, user_id: int) -> None:
    """An effect that raises or emits leaves only its alarm, and its batch goes on."""
    harness.apply(*[command(PUT, put_request(f"w{i}"), revision=i + 1) for i in range(14)])
    reply = harness.apply(effect(user_id, 20), command(PUT, put_request("after"))).reply
    assert {f"w{user_id - 1}", "after"} <= set(harness.texts())
    assert reply.outcomes[0].HasField("done")
    assert not reply.proposals
    assert [alarm.where for alarm in harness.machine.alarms] == ["effect user_deleted"]


def test_savepoint_revert_restores_everything(harness: MachineHarness) -> None:
    """Reverting restores entities, indexes, counters and held proposals, over several batches."""
    harness.apply(command(PUT, put_request("a", "old"), put_request("b")))
    before, digest = harness.machine.state.snapshot(), harness.machine.state_digest()
    harness.apply(SAVEPOINT, command(PUT, put_request("a", "new", tell=True), revision=3))
    harness.apply(command(REMOVE, message("RemoveRequest", name="b"), revision=3), effect(1, 3))
    harness.apply(REVERT)
    assert harness.machine.state.snapshot() == before
    assert harness.machine.state_digest() == digest
    assert not harness.apply(SAVEPOINT, KEEP).reply.proposals
    assert not harness.machine.undo.entries


def test_savepoint_keep_lets_changes_and_proposals_stand(harness: MachineHarness) -> None:
    """Proposals of a transaction come only once it is kept."""
    during = harness.apply(SAVEPOINT, command(PUT, put_request("a", tell=True))).reply
    after = harness.apply(KEEP).reply
    assert not during.proposals
    assert [p.due for p in after.proposals] == [1]
    assert harness.texts() == {"a": "a"}
    assert not harness.machine.undo.entries


def test_failed_command_in_a_savepoint_takes_back_only_itself(harness: MachineHarness) -> None:
    """The changes in the savepoint survive a failed command until the savepoint is decided."""
    bad = command(PUT, put_request("b", fault="refuse"))
    harness.apply(SAVEPOINT, command(PUT, put_request("a")), bad)
    assert harness.texts() == {"a": "a"}
    harness.apply(REVERT)
    assert harness.texts() == {}


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
    """Any mix of puts, removals, failures and savepoints equals a dict that is copied and restored.

    The index and the sorted keys must follow every undo.
    """
    harness, model, saved = MachineHarness(), dict[str, str](), None
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
    together, apart = MachineHarness(), MachineHarness()
    outcomes = list(together.apply(*items).reply.outcomes)
    assert outcomes == [apart.one(item) for item in items]
    assert together.machine.state_digest() == apart.machine.state_digest()
    assert together.machine.state.snapshot() == apart.machine.state.snapshot()
