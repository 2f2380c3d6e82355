"""How far a process that stops may write to its superblock that the log is committed."""

from __future__ import annotations

from coordinator.vsr.messages import CommittedMessage, RequestStartViewMessage
from tests.coordinator.vsr.cluster_harness import CLUSTER_ID, FEATURE_LEVEL, bootstrapped
from viewstamp.format.prepare import seal
from viewstamp.limits import HEARTBEAT_MS


def test_a_stop_records_no_commit_that_is_not_durable() -> None:
    """A committed entry is executed while another one lies in its place on the disk.

    Started again with that commit, the replica would execute the other one.
    """
    cluster = bootstrapped(3)
    cluster.pass_time(HEARTBEAT_MS)
    cluster.batch(0)
    cluster.sync(0)
    first = cluster.machines[0]
    committed = seal(
        parent=first.journal[0].checksum,
        cluster_id=CLUSTER_ID,
        view=1,
        op=2,
        commit=1,
        first_revision=2,
        command_count=1,
        feature_level=FEATURE_LEVEL,
        timestamp=5_000,
        body=b"y",
    )
    for other in cluster.machines[1:]:
        other.journal.append(committed)
    cluster.receive(0, RequestStartViewMessage(CLUSTER_ID, 1, 1, bytes(16)))

    cluster.receive(0, CommittedMessage(CLUSTER_ID, 1, committed, 2))

    assert first.replica.marks.commit_min == 2
    assert first.journal[1].checksum != committed.checksum
    assert first.replica.recordable_commit == 1
    cluster.sync(0)
    assert first.replica.recordable_commit == 2
