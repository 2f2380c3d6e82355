"""The verdict on a round: what its history, its sessions, its replicas and its snapshots say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from testkit.load.generations import COMPLETED, TakenGeneration, check_files
from testkit.load.oracle import check_records
from testkit.load.records import read_records
from testkit.load.state import LoadState
from testkit.oracles.cycles import anomalies
from testkit.oracles.feeds import ShownFeed, ToldChange
from testkit.oracles.revisions import contradictions
from testkit.oracles.transactions import Transaction, TransactionOutcome, Written
from testkit.torture.keys import TOPIC, shown_by
from testkit.torture.recorder import Recorder
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.watch.v1.watch_service_pb2 import Change
from viewstamp.snapshots.copies import Copies, copy_directories
from viewstamp.snapshots.generation import Generation

# Alarms that stand for a promise that was broken, whatever was done to a replica.
BROKEN: Final = frozenset(
    {
        cluster_pb2.ALARM_KIND_COMMAND_REVERTED,
        cluster_pb2.ALARM_KIND_REPLICA_DIVERGED,
        cluster_pb2.ALARM_KIND_STUCK,
        cluster_pb2.ALARM_KIND_PEER_REFUSED,
        cluster_pb2.ALARM_KIND_SNAPSHOT_COPY_BAD,
    }
)
# All that the load of sessions creates has such names; the keys of transactions have others.
LOAD_PREFIX: Final = "load-"


def judge_history(recorder: Recorder) -> list[str]:
    """Return what is wrong with the transactions."""
    return [
        *recorder.surprises,
        *map(str, anomalies(recorder.history)),
        *contradictions(recorder.history),
    ]


def judge_sessions(records: Path, before: LoadState, after: LoadState) -> list[str]:
    """Return what is wrong with the numbered requests of the load, and with what they left."""
    found = check_records(read_records(records), of_load(before), of_load(after))
    return [f"{violation.check}: {violation.evidence}" for violation in found]


def of_load(state: LoadState) -> LoadState:
    """Return the part of a state that the load of sessions makes."""
    return LoadState(
        streams={k: v for k, v in state.streams.items() if k.startswith(LOAD_PREFIX)},
        users={k: v for k, v in state.users.items() if k.startswith(LOAD_PREFIX)},
        tokens={k: v for k, v in state.tokens.items() if k.startswith(LOAD_PREFIX)},
    )


def judge_replicas(statuses: Sequence[cluster_pb2.GetStatusResponse]) -> list[str]:
    """Return where replicas differ that have applied the same op, and alarms of broken promises."""
    states = {
        (*(service.state_digest for service in status.services), status.sessions_digest)
        for status in statuses
    }
    found = [f"the replicas are in {len(states)} different states"] if len(states) > 1 else []
    for replica, status in enumerate(statuses):
        found += [
            f"replica {replica} raises {cluster_pb2.AlarmKind.Name(alarm.kind)}: {alarm.message}"
            for alarm in status.alarms
            if alarm.kind in BROKEN
        ]
    return found


def judge_snapshots(taken: Sequence[TakenGeneration], directories: Sequence[Path]) -> list[str]:
    """Verify every completed generation on each replica's disk, and compare the roots.

    A replica that was away when a generation was cut has no files of it; all have the newest one.
    """
    found = []
    roots: dict[int, set[str]] = {}
    newest = max((one.generation for one in taken if one.state == COMPLETED), default=0)
    for replica, directory in enumerate(directories):
        copies = Copies(copy_directories(directory))
        present = [
            one
            for one in taken
            if one.state != COMPLETED
            or one.generation == newest
            or one.generation in copies.generations()
        ]
        broken = check_files(present, directory)
        found += [f"replica {replica}: {violation.evidence}" for violation in broken]
        for one in [] if broken else present:
            if one.state == COMPLETED:
                root = Generation(copies, one.generation).manifest.root.hex()
                roots.setdefault(one.generation, set()).add(root)
    return found + [
        f"generation {number} has the roots {sorted(different)} on the replicas"
        for number, different in roots.items()
        if len(different) > 1
    ]


def judge_watches(feed: ShownFeed, history: Sequence[Transaction]) -> list[str]:
    """Return what is wrong with what watchers were shown, given what callers were told.

    A revision has everything that one transaction wrote and nothing else of what callers write, at
    the revision of which its caller was told, and nothing that was refused.
    """
    wrote = {write: each for each in history for write in each.writes}
    at: dict[Written, int] = {}
    found = feed.violations(_told(history))
    for revision, changes in sorted(feed.whole().items()):
        shown = {write for each in changes if (write := shown_by(Change.FromString(each))) in wrote}
        found += [
            f"watchers were shown {write} at revision {at[write]} and at {revision}"
            for write in shown & at.keys()
        ]
        at |= dict.fromkeys(shown, revision)
        for transaction in {id(wrote[write]): wrote[write] for write in shown}.values():
            found += _wrongly_shown(revision, shown, transaction)
    return found


def _told(history: Sequence[Transaction]) -> list[ToldChange]:
    return [
        ToldChange(each.name, each.revision, any(key.startswith(TOPIC) for key, _ in each.writes))
        for each in history
        if each.writes and each.revision is not None
    ]


def _wrongly_shown(revision: int, shown: set[Written], transaction: Transaction) -> list[str]:
    found = []
    if transaction.outcome is TransactionOutcome.ABORTED:
        found.append(f"watchers were shown at revision {revision} what was refused: {transaction}")
    if transaction.revision not in (None, revision):
        found.append(
            f"watchers were shown at revision {revision} what was done at another one:"
            f" {transaction}"
        )
    if shown != set(transaction.writes):
        found.append(
            f"watchers were shown {sorted(shown)} at revision {revision}, and not what one"
            f" transaction wrote: {transaction}"
        )
    return found
