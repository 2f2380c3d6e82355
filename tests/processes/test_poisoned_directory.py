"""Directories that an earlier build could not start with: this build starts, and serves."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.processes.callers import Caller, SubmitStream, named
from tests.processes.poisoned.make_poison import TOPICS, changes, heartbeats
from tests.processes.processes import ReplicaProcesses, short_directory
from viewstamp import limits
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_service_pb2 as streams
from viewstamp.api.submit.v1 import submit_service_pb2 as submit
from viewstamp.framing import frame, unframe

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("processes-poisoned")]

ARCHIVES = Path(__file__).parent / "poisoned"
# The earlier build used this size.
SEGMENT_BYTES = 16 * 1024 * 1024
CHANGES = 8_190
# One prepare has room for no more than this many changes of partitions.
CHANGES_WITH_ROOM = limits.PREPARE_ROWS_MAX // (
    limits.PARTITIONS_CHANGED_ROWS - limits.COMMAND_FREE_ROWS
)


@contextmanager
def started(kind: str) -> Iterator[ReplicaProcesses]:
    """Run a replica with the directory of a kind."""
    with short_directory() as directory:
        with tarfile.open(ARCHIVES / f"{kind}.tar.xz") as archive:
            archive.extractall(directory / "data", filter="data")
        (directory / "data" / "cluster.key").rename(directory / "cluster.key")
        made = ReplicaProcesses(directory, flags=[f"--journal-segment-bytes={SEGMENT_BYTES}"])
        try:
            made.start()
            yield made
        finally:
            made.stop()


def test_changes_of_partitions_are_carried_out() -> None:
    """A directory that an earlier build could not start with starts, and serves all its state.

    All 8,190 commands stand, since nobody knows which commands were acknowledged. Each group has
    heard of all, of the last ones by steps, and follows the same user's next change. Once the
    feature level bounds requests, the same request is refused.
    """
    partitions, count = TOPICS["partitions"]
    with started("partitions") as replica, replica.root() as root:
        user, where = _found(root)
        _check_groups(user, where, partitions, count)
        more = streams.CreatePartitionsRequest(partitions_count=1, **where)
        user.once(user.streams.CreatePartitions, more)
        _check_groups(user, where, partitions + 1, count)
        request = cluster.RaiseFeatureLevelRequest(
            level=limits.FEATURE_LEVEL_BOUNDED, expected=limits.FEATURE_LEVEL_BOUNDED - 1
        )
        root.call(root.cluster.RaiseFeatureLevel, request)
        root.create_stream("behind the level")
        _check_refused(_reasons(SubmitStream(user).ask(2, *changes(where), acked=1)))
        root.create_stream("after")


def test_heartbeats_have_become_a_refusal() -> None:
    """A request whose answer fits no message is now refused, also where an old log has it.

    Its sender retries, gets the refusal, and goes on.
    """
    with started("heartbeats") as replica, replica.root() as root:
        user, where = _found(root)
        view = groups.GetConsumerGroupRequest(group=named("g0"), **where)
        (member,) = user.call(user.groups.GetConsumerGroup, view).group.members
        user.session = member.session_id
        stream = SubmitStream(user)
        beats = heartbeats(user, where)
        error = stream.ask(2, *beats, acked=1).error
        assert error.reason == Reason.REASON_ANSWER_TOO_LARGE
        assert {detail.key: detail.value for detail in error.details}["applied"] == "true"
        one = submit.Span(code=beats[0].code, count=1, items=frame(unframe(beats[0].items)[0]))
        assert _reasons(stream.ask(3, one, acked=2)) == [""]
        root.create_stream("after")


def _found(root: Caller) -> tuple[Caller, dict[str, Any]]:
    """Return the user who sent the request, with a new session, and how requests name the topic."""
    listed = root.call(root.streams.ListStreams, streams.ListStreamsRequest()).streams
    (stream,) = [found for found in listed if found.name.startswith("s")]
    user = root.logged_in(f"u{stream.name[1:]}", "secret").with_session()
    return user, {"stream": named(stream.name), "topic": named("t")}


def _check_groups(user: Caller, where: dict[str, Any], partitions_count: int, count: int) -> None:
    for number in range(count):
        request = groups.GetConsumerGroupRequest(group=named(f"g{number}"), **where)
        group = user.call(user.groups.GetConsumerGroup, request).group
        assert group.partitions_count == partitions_count and group.members_count == 1
        assert group.group_epoch > CHANGES


def _reasons(reply: submit.CommandReply) -> list[str]:
    """Return the reason of each command of a request, "" for success."""
    assert not reply.HasField("error"), reply.error
    reasons: list[str] = []
    for answer in reply.spans:
        own = [""] * len(unframe(answer.results))
        for error in answer.errors:
            own[error.index] = Reason.Name(error.error.reason).removeprefix("REASON_")
        reasons += own
    return reasons


def _check_refused(reasons: Sequence[str]) -> None:
    """Check that the first changes stand, and that all later ones lack room."""
    stand = reasons.index("COST_EXCEEDED")
    assert 0 < stand <= CHANGES_WITH_ROOM
    assert not any(reasons[:stand]) and set(reasons[stand:]) == {"COST_EXCEEDED"}
