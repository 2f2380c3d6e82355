"""Commands beyond their budget are refused deterministically, and no others are."""

from __future__ import annotations

import pytest

from services.runtime.cost import Budget
from tests.services.cost.machines import granted, streams
from viewstamp import limits
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as api
from viewstamp.errors import Refusal

# Frames, indexes and tags around the answer to one command, in a reply to a client.
AROUND_AN_ANSWER_BYTES = 24
# Stages whose answers are counted.
STAGES = 3


def topics(stream_id: int, count: int) -> list[api.CreateTopicRequest]:
    """Return requests that make topics with one partition."""
    requests = []
    for number in range(count):
        request = api.CreateTopicRequest(name=f"t{number}", partitions_count=1)
        request.stream.id = stream_id
        requests.append(request)
    return requests


def test_a_reply_fits_one_message() -> None:
    """All answers to a full prepare, at all stages, fit into one message."""
    free = limits.PREPARE_COMMANDS_MAX * (limits.ANSWER_FREE_BYTES + AROUND_AN_ANSWER_BYTES)
    pools = STAGES * limits.PREPARE_ANSWERS_BYTES_MAX
    # Refusals from before the log are in it.
    assert free + pools + limits.PREPARE_BODY_BYTES_MAX < limits.MESSAGE_BYTES_MAX
    assert limits.MESSAGE_BYTES_MAX < limits.ENTITY_BYTES_MAX
    assert limits.COMMAND_ROWS_MAX <= limits.PREPARE_ROWS_MAX


def test_partitions_up_and_down() -> None:
    """Of 8,190 alternating changes of partitions the first succeed, and all the rest is refused."""
    fed = streams()
    fed.commands("CreateStream", [api.CreateStreamRequest(name="s")])
    fed.commands("CreateTopic", topics(1, 1))
    items = []
    for number in range(limits.PREPARE_COMMANDS_MAX):
        name = "CreatePartitions" if number % 2 else "DeletePartitions"
        request = (api.CreatePartitionsRequest if number % 2 else api.DeletePartitionsRequest)()
        request.stream.id, request.topic.id, request.partitions_count = 1, 1, 1
        items.append(fed.span(name, [request]))
    reply = fed.prepare(*items)
    errors = [bool(outcome.command.errors) for outcome in reply.outcomes]
    changes = sum(len(outcome.command.effects) for outcome in reply.outcomes)
    first = errors.index(True)
    assert 100 < first == changes < 1_000 and all(errors[first:])
    refusal = Refusal.from_error(reply.outcomes[-1].command.errors[0].error)
    assert refusal.name == "COST_EXCEEDED"
    assert refusal.details["scope"] == "prepare" and refusal.details["retry_delay_ms"] == "100"
    assert fed.commands("DeletePartitions", [request]) == [""]  # another prepare has room again


def test_streams_full_of_topics() -> None:
    """Of many streams of 4,096 topics some are deleted at once, and cheap commands still
    succeed."""
    fed = streams()
    count = 16
    names = [api.CreateStreamRequest(name=f"s{number}") for number in range(count)]
    fed.commands("CreateStream", names)
    for stream_id in range(1, count + 1):
        fed.commands("CreateTopic", topics(stream_id, limits.TOPICS_PER_STREAM_MAX))
    deletions = []
    for stream_id in range(1, count + 1):
        deletions.append(api.DeleteStreamRequest())
        deletions[-1].stream.id = stream_id
    cheap = [api.CreateStreamRequest(name=f"n{number}") for number in range(100)]
    reply = fed.prepare(fed.span("DeleteStream", deletions), fed.span("CreateStream", cheap))
    refused = len(reply.outcomes[0].command.errors)
    assert 1 <= refused < count and not reply.outcomes[1].command.errors
    again = fed.commands("DeleteStream", deletions[count - refused :])
    assert set(again) == {""}  # each alone, or with few others, is well within the limit


def test_grants_go_with_their_stream() -> None:
    """A stream with thousands of users, each with thousands of grants elsewhere, can be deleted."""
    fed = streams()
    names = [api.CreateStreamRequest(name=f"s{number}") for number in range(200)]
    fed.commands("CreateStream", names)
    everywhere = granted(*((stream_id, ()) for stream_id in range(1, 201)))
    for user_id in range(1, 1_001):
        changed = effects_pb2.GrantsChanged(user_id=user_id, permissions=everywhere)
        fed.prepare(fed.effect(grants_changed=changed))
    deletions = []
    for stream_id in range(1, 101):
        deletions.append(api.DeleteStreamRequest())
        deletions[-1].stream.id = stream_id
    first = fed.commands("DeleteStream", deletions)
    assert first[0] == "" and first[-1] == "COST_EXCEEDED"
    assert 1 not in fed.machine.state.grantees
    assert 1 not in fed.machine.state.access.rows[1].streams


def test_a_command_may_not_cost_more_than_the_limit() -> None:
    """A command that would touch more than its limit is refused for good, and says so."""
    budget = Budget()
    budget.begin(1, limits.FEATURE_LEVEL_BOUNDED)
    with pytest.raises(Refusal) as refused:
        budget.charge(1, limits.COMMAND_ROWS_MAX + 1)
    assert refused.value.details["scope"] == "command"
    assert "retry_delay_ms" not in refused.value.details
    budget.charge(2, limits.COMMAND_ROWS_MAX)  # nothing was taken from the others


def test_cheap_commands_are_never_refused() -> None:
    """The free cost of each command stays free after the pool is empty, once per command."""
    budget = Budget()
    budget.begin(1, limits.FEATURE_LEVEL_BOUNDED)
    budget.charge(1, limits.COMMAND_ROWS_MAX)
    while budget.rows_left:
        budget.charge(2, 1)
    for revision in range(3, 100):
        budget.charge(revision, limits.COMMAND_FREE_ROWS)
        assert budget.answer(revision, limits.ANSWER_FREE_BYTES)
    with pytest.raises(Refusal, match="costs"):
        budget.charge(99, 1)
    budget.begin(2, limits.FEATURE_LEVEL_BOUNDED)
    budget.charge(99, limits.COMMAND_FREE_ROWS + 1)


def test_refusals_lose_their_details() -> None:
    """Once the room for answers is used up a refusal is its reason alone, and still an answer."""
    budget = Budget()
    budget.begin(1, limits.FEATURE_LEVEL_BOUNDED)
    long = "x" * 250
    details = [errors_pb2.ErrorDetail(key=f"k{n}", value=long) for n in range(4)]
    error = errors_pb2.Error(reason=errors_pb2.REASON_USER_NOT_FOUND, details=details)
    bare = errors_pb2.Error(reason=errors_pb2.REASON_USER_NOT_FOUND)
    fitted = [budget.fitting(revision, error) for revision in range(limits.PREPARE_COMMANDS_MAX)]
    assert fitted[0] == error and fitted[-1] == bare
    free = limits.PREPARE_COMMANDS_MAX * limits.ANSWER_FREE_BYTES
    total = sum(one.ByteSize() for one in fitted)
    assert total <= free + limits.PREPARE_ANSWERS_BYTES_MAX


def test_refusals_of_names_fit() -> None:
    """8,190 refusals that quote long names stay below the pool and the free cost together."""
    fed = streams()
    requests = []
    for number in range(limits.PREPARE_COMMANDS_MAX):
        requests.append(api.DeleteStreamRequest())
        requests[-1].stream.name = f"{number}" + "n" * 5_000
    total = 0
    for start in range(0, len(requests), 800):
        part = fed.span("DeleteStream", requests[start : start + 800])
        reply = fed.batch(part) if start else fed.prepare(part)
        total += reply.ByteSize()
    around = AROUND_AN_ANSWER_BYTES * len(requests)
    free = len(requests) * limits.ANSWER_FREE_BYTES
    assert total < around + free + limits.PREPARE_ANSWERS_BYTES_MAX
