"""Who takes which message of another replica: one row for each kind of the protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from coordinator.peers import messages as shell
from coordinator.peers.messages import PeerMessage
from coordinator.vsr import messages as core

Handler: TypeAlias = Callable[[Any], None]


class Receiver(Enum):
    """A part of the replica that takes messages of other replicas."""

    CORE = "core"
    SNAPSHOTS = "snapshots"
    REPORTS = "reports"


ROUTES: Final[tuple[tuple[type[PeerMessage], Receiver], ...]] = (
    (core.PrepareMessage, Receiver.CORE),
    (core.PrepareOkMessage, Receiver.CORE),
    (core.CommitMessage, Receiver.CORE),
    (core.CommitOkMessage, Receiver.CORE),
    (core.ReadIndexRequestMessage, Receiver.CORE),
    (core.ReadIndexReplyMessage, Receiver.CORE),
    (core.BlankQueryMessage, Receiver.CORE),
    (core.BlankAnswerMessage, Receiver.CORE),
    (core.StartViewChangeMessage, Receiver.CORE),
    (core.DoViewChangeMessage, Receiver.CORE),
    (core.StartViewMessage, Receiver.CORE),
    (core.RequestStartViewMessage, Receiver.CORE),
    (core.RequestPrepareMessage, Receiver.CORE),
    (core.RepairMessage, Receiver.CORE),
    (core.RequestCommittedMessage, Receiver.CORE),
    (core.CommittedMessage, Receiver.CORE),
    (core.CommittedGoneMessage, Receiver.CORE),
    (core.EpochEndedMessage, Receiver.CORE),
    (core.RequestAdmissionMessage, Receiver.CORE),
    (core.AdmissionMessage, Receiver.CORE),
    (core.AdmissionDurableMessage, Receiver.CORE),
    (shell.SnapshotDurableMessage, Receiver.SNAPSHOTS),
    (shell.ReplicaReportMessage, Receiver.REPORTS),
)


def handlers_of(
    receivers: Mapping[Receiver, Handler],
    routes: Iterable[tuple[type[PeerMessage], Receiver]] = ROUTES,
) -> Mapping[type, Handler]:
    """Return who handles each kind of message.

    Raises KeyError if a receiver is missing, ValueError if a kind has two rows.
    """
    handlers: dict[type, Handler] = {}
    for kind, receiver in routes:
        if kind in handlers:
            raise ValueError(f"{kind.__name__} has two rows: leave one, since one part takes it")
        handlers[kind] = receivers[receiver]
    return MappingProxyType(handlers)
