"""A replica that was removed serves nobody, and tells everybody who leads."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator import vsr
from coordinator.replica.peers import PeerPorts
from coordinator.replica.ports import Progress
from coordinator.replica.serving import Serving
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal

ADDRESS = "c.example.com:7400"


class IdleCore:
    """A core that would take every batch."""

    def batch_refusal(self) -> vsr.RefusalReason | None:
        """Return that it would."""
        return None


def serving_in(status: vsr.ReplicaStatus) -> Serving:
    """Return that of replica 0, where replica 2 leads."""
    progress = Progress(primary=2, status=status)
    peers = PeerPorts(replica_id=0, address=lambda replica: ADDRESS if replica == 2 else "")
    return Serving(IdleCore(), progress, peers)


def read_refused(serving: Serving) -> None:
    """Refuse a read as the core says that it must be."""
    raise serving.refusal_of(vsr.RefusalReason.OTHER_EPOCH)


@pytest.mark.parametrize("check", [Serving.check, Serving.check_reading, read_refused])
def test_a_removed_replica_names_the_primary(check: Callable[[Serving], None]) -> None:
    """Callers with commands and with reads go there, since nothing changes here any more."""
    with pytest.raises(Refusal) as refused:
        check(serving_in(vsr.ReplicaStatus.REMOVED))
    assert refused.value.reason == Reason.REASON_NOT_PRIMARY
    assert refused.value.details["address"] == ADDRESS


@pytest.mark.parametrize("check", [Serving.check, Serving.check_reading])
def test_during_a_view_change_nobody_is_named(check: Callable[[Serving], None]) -> None:
    """Who is to lead is no primary yet: callers try again."""
    with pytest.raises(Refusal) as refused:
        check(serving_in(vsr.ReplicaStatus.VIEW_CHANGE))
    assert refused.value.reason == Reason.REASON_VIEW_CHANGE


def test_backups_serve_reads_alone() -> None:
    """A member that follows answers reads, and names the primary for commands."""
    serving = serving_in(vsr.ReplicaStatus.NORMAL)
    serving.check_reading()
    with pytest.raises(Refusal, match="replica 2 is the primary"):
        serving.check()
