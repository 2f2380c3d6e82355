"""The first version of each section made the layers in `golden/` with this program, once.

They are never made again: the layers of an earlier build must load for ever. For a section of a
later version add a directory, and keep this one: `python -m tests.services.runtime.golden_sections
DIRECTORY`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from services.consumer_groups.domain import DOMAIN as GROUPS
from services.streams.domain import DOMAIN as STREAMS
from services.users.domain import build_domain
from tests.services.consumer_groups.harness import GroupsHarness
from tests.services.runtime.snapshot_trial import SnapshotTrial
from tests.services.streams.streams_workbench import Workbench, by, in_topic
from tests.services.users.users_support import CLUSTER_KEY, Users, by_id
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_api
from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.users.v1 import users_service_pb2 as users_api
from viewstamp.format.block import Block, verify_block
from viewstamp.format.layer import LayerHeader, LayerWriter, decode_block

CLUSTER: Final = bytes(range(16))


def users(trial: SnapshotTrial) -> None:
    """Make users with grants and tokens, then delete, change and add some."""
    bench = Users()
    bench.machine = trial.machine
    bench.found()
    bench.create("alice", "manage_streams", "read_users")
    bench.create("bob")
    token = users_api.CreatePersonalAccessTokenRequest(name="laptop", token_hash=bytes(range(32)))
    bench.command("CreatePersonalAccessToken", token, 1)
    close(trial)
    bench.command("DeleteUser", users_api.DeleteUserRequest(user=by_id(2)))
    inactive = users_pb2.USER_STATUS_INACTIVE
    bench.command("UpdateUser", users_api.UpdateUserRequest(user=by_id(1), status=inactive))
    bench.create("carol")
    close(trial)


def streams(trial: SnapshotTrial) -> None:
    """Make streams, topics and grants, then delete, change and add some."""
    bench = Workbench()
    bench.machine, bench.revision = trial.machine, 0
    bench.grant(0, users_pb2.Permissions())
    for name in ("orders", "logs"):
        bench.create_stream(name)
        for topic in ("in", "out"):
            bench.create_topic(name, topic, 3)
    bench.grant(4, in_topic(1, 1, "read_topic", "poll_messages"))
    close(trial)
    bench.command("DeleteStream", streams_api.DeleteStreamRequest(stream=by("logs")))
    add = streams_api.CreatePartitionsRequest(
        stream=by("orders"), topic=by("in"), partitions_count=2
    )
    bench.command("CreatePartitions", add)
    bench.create_topic("orders", "more", 0)
    bench.effect(user_deactivated={"user_id": 4})
    close(trial)


def consumer_groups(trial: SnapshotTrial) -> None:
    """Make groups with members, then stop in the middle of a handover."""
    bench = GroupsHarness(partitions_count=4, machine=trial.machine)
    bench.create()
    bench.create("second")
    bench.create("elsewhere", topic=2)
    for session in (11, 12):
        bench.join(session, rack="r")
    bench.settle()
    close(trial)
    bench.leave(12)
    bench.join(13, "static")
    bench.join(14)
    bench.propose_all()
    close(trial)


def close(trial: SnapshotTrial) -> None:
    """Take a cut, read it, and make it the base of the next one."""
    trial.cut()
    trial.read()
    trial.release(max(trial.cuts))


HISTORIES: Final[dict[str, tuple[Any, Callable[[SnapshotTrial], None]]]] = {
    "users": (build_domain(CLUSTER_KEY, lambda: 0), users),
    "streams": (STREAMS, streams),
    "consumer_groups": (GROUPS, consumer_groups),
}


def layer(trial: SnapshotTrial, generation: int) -> bytes:
    """Return a generation as a layer file."""
    cut, domain = trial.cuts[generation], trial.machine.domain
    assert cut.summary is not None
    base, version = cut.summary.base_generation, domain.section.version
    writer = LayerWriter(LayerHeader(CLUSTER, domain.stage, version, generation, base, 1))
    parts = [writer.begin(), *(writer.add(described(data)) for data in cut.blocks)]
    return b"".join([*parts, writer.finish()])


def described(data: bytes) -> Block:
    """Return a block with its maker's counts."""
    header, entries = verify_block(data), decode_block(data)
    first, last = entries[0][:2], entries[-1][:2]
    return Block(data, header.entries, header.tombstones, header.raw_bytes, first, last)


def main(directory: Path) -> None:
    """Write two layers per domain, and print their sums."""
    for name, (domain, history) in HISTORIES.items():
        trial = SnapshotTrial(domain)
        history(trial)
        for generation, cut in trial.cuts.items():
            (directory / f"{name}-{generation}.layer").write_bytes(layer(trial, generation))
            print(name, generation, len(cut.entities), cut.digest.hex())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
