"""What must not go on in a new cluster is ended there, by the commands of a primary. Pure.

A session ends by ExpireSession, so that every machine does what it does at the end of any session;
its memberships end by the chores that follow, once the new cluster runs. A snapshot that was under
way fails, and the members that the log named are forgotten. Then BeginSnapshot cuts the one
generation that the new cluster has.

Their revisions begin 2**32 behind the last one (`jumps`): whatever they change says so, and the
cut's entry is the first one of the new log as it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from coordinator.mux.catalog_types import (
    BeginEpoch,
    BeginSnapshot,
    FailSnapshot,
    Snapshot,
    SnapshotState,
)
from coordinator.stages import catalog_codec
from coordinator.stages.codec import EXPIRE_SESSION_CODE
from past.founding.jumps import JUMP
from past.state import PastState
from viewstamp.api.log.v1 import log_pb2
from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions_pb2
from viewstamp.format.prepare import SealedPrepare, seal
from viewstamp.framing import frame, frame_all
from viewstamp.limits import (
    GATEWAY_SESSION_ID,
    SNAPSHOT_KEEP_DAILY,
    SNAPSHOT_KEEP_LAST,
    SYSTEM_USER_ID,
)

# So that no entry reaches a prepare's budget of rows.
SESSIONS_PER_ENTRY: Final = 256
# The view of the cut: like a replica that restarts, each one begins with a view change.
FOUNDING_VIEW: Final = 1
_REASON: Final = "the cluster was lost before it was decided"


@dataclass(frozen=True, slots=True)
class EndedState:
    """The cut of the new cluster, and how many sessions ended for it."""

    cut: SealedPrepare
    generation: int
    sessions: int


def end_and_cut(state: PastState, cluster_id: bytes) -> EndedState:
    """End sessions and undecided snapshots of a state, and cut it."""
    state.skip_revisions(JUMP)
    sessions = state.live_sessions()
    for begin in range(0, len(sessions), SESSIONS_PER_ENTRY):
        requests = [
            sessions_pb2.ExpireSessionRequest(
                session_id=session.session_id, last_request_number=session.last_number
            ).SerializeToString(deterministic=True)
            for session in sessions[begin : begin + SESSIONS_PER_ENTRY]
        ]
        _apply(state, cluster_id, EXPIRE_SESSION_CODE, requests)
    for undecided in _undecided(state.snapshots()):
        failed = catalog_codec.fail_snapshot_request(FailSnapshot(undecided, _REASON))
        _apply(state, cluster_id, catalog_codec.FAIL_SNAPSHOT_CODE, [failed])
    if state.has_members():
        nobody = catalog_codec.begin_epoch_request(BeginEpoch(0, (), (), 0))
        _apply(state, cluster_id, catalog_codec.BEGIN_EPOCH_CODE, [nobody])
    generation = state.last_generation() + 1
    command = BeginSnapshot(generation, SNAPSHOT_KEEP_LAST, SNAPSHOT_KEEP_DAILY)
    request = catalog_codec.begin_snapshot_request(command)
    cut = _apply(state, cluster_id, catalog_codec.BEGIN_SNAPSHOT_CODE, [request])
    return EndedState(cut, generation, len(sessions))


def _undecided(snapshots: Iterable[Snapshot]) -> list[int]:
    return [each.generation for each in snapshots if each.state is SnapshotState.CREATED]


def _apply(
    state: PastState, cluster_id: bytes, code: int, requests: Sequence[bytes]
) -> SealedPrepare:
    """Have the state apply an entry of internal commands of one method, and return the entry."""
    span = log_pb2.LoggedSpan(
        code=code, count=len(requests), items=frame_all(requests), user_id=SYSTEM_USER_ID
    )
    logged = log_pb2.LoggedRequest(session_id=GATEWAY_SESSION_ID, spans=[span])
    entry = seal(
        parent=state.checksum,
        cluster_id=cluster_id,
        view=FOUNDING_VIEW,
        op=state.op + 1,
        commit=state.op,
        first_revision=state.next_revision,
        command_count=len(requests),
        feature_level=state.feature_level,
        timestamp=state.timestamp_us + 1,
        body=frame(logged.SerializeToString(deterministic=True)),
    )
    state.apply(entry)
    return entry
