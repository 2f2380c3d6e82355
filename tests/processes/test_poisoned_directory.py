"""What stopped the build before for good: this one starts with it, and goes on."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes.callers import Caller, named
from tests.processes.processes import Replica, short_directory
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups
from viewstamp.api.streams.v1 import streams_service_pb2 as streams

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("processes-poisoned")]

ARCHIVE = Path(__file__).parent / "poisoned" / "directory.tar.xz"
# As the build before laid it out.
SEGMENT_BYTES = 16 * 1024 * 1024
PARTITIONS = 1_000
GROUPS = 20
CHANGES = 8_190


@pytest.fixture
def poisoned() -> Iterator[Replica]:
    """A running replica with the directory."""
    with short_directory() as directory:
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(directory / "data", filter="data")
        (directory / "data" / "cluster.key").rename(directory / "cluster.key")
        made = Replica(directory, flags=[f"--journal-segment-bytes={SEGMENT_BYTES}"])
        try:
            made.start()
            yield made
        finally:
            made.stop()


def test_the_poisoned_request_is_carried_out(poisoned: Replica) -> None:
    """A directory that could not be started starts, and serves all that is in it.

    All 8,190 commands stand, since nobody knows which of such were acknowledged. Each group has
    heard of them, of the last ones by steps, and follows what the same user does next.
    """
    with poisoned.root() as root:
        (stream,) = [
            found
            for found in root.call(root.streams.ListStreams, streams.ListStreamsRequest()).streams
            if found.name.startswith("s")
        ]
        tag = stream.name[1:]
        user = root.logged_in(f"u{tag}", "secret").with_session()
        where: dict[str, Any] = {"stream": named(stream.name), "topic": named("t")}
        _check_groups(user, where, PARTITIONS)
        more = streams.CreatePartitionsRequest(partitions_count=1, **where)
        user.once(user.streams.CreatePartitions, more)
        _check_groups(user, where, PARTITIONS + 1)
        root.create_stream("after")


def _check_groups(user: Caller, where: dict[str, Any], partitions_count: int) -> None:
    for number in range(GROUPS):
        request = groups.GetConsumerGroupRequest(group=named(f"g{number}"), **where)
        group = user.call(user.groups.GetConsumerGroup, request).group
        assert group.partitions_count == partitions_count and group.members_count == 1
        assert group.group_epoch > CHANGES
