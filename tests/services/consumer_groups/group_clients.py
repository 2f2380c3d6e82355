"""What clients of a group know and do, as far as a history of the group depends on it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


class SentHeartbeat(NamedTuple):
    """A heartbeat as its sender knew things when it sent it."""

    session: int
    epoch: int
    reading: Collection[int]
    assignment: int


class TellsPartitions(Protocol):
    """An answer that tells a member what it should hold, unless the member knows that."""

    @property
    def member_epoch(self) -> int: ...
    @property
    def assignment(self) -> int: ...
    @property
    def owned_partitions(self) -> Collection[int]: ...
    @property
    def revoking_partitions(self) -> Collection[int]: ...
    @property
    def partitions_omitted(self) -> bool: ...


@dataclass
class GroupClient:
    """A truthful client: it reads what the latest answer that it heard told it.

    It stops by itself if for too long it has heard no answer that leaves it nothing to give up. A
    deadline begins after such an answer, so who keeps to this has stopped before it passes.
    """

    epoch: int
    instance_id: str
    seen_at: int  # log time at which the service heard of it last
    assignment: int = 0  # as told; 0 for none
    owned: frozenset[int] = frozenset()
    revoking: frozenset[int] = frozenset()
    reads_until: int = 0
    reading: frozenset[int] = field(default_factory=frozenset)

    def read_at(self, now: int) -> frozenset[int]:
        """Return what it reads."""
        return self.reading if now < self.reads_until else frozenset()

    def heartbeat(self, session: int, now: int) -> SentHeartbeat:
        """Return the heartbeat that it would send."""
        return SentHeartbeat(session, self.epoch, self.read_at(now), self.assignment)

    def hear(self, answer: TellsPartitions, sent_at: int, lease_us: int, *, is_slow: bool) -> None:
        """Take an answer in; a slow client still reads what it has to give up."""
        self.epoch, self.assignment = answer.member_epoch, answer.assignment
        if not answer.partitions_omitted:
            self.owned = frozenset(answer.owned_partitions)
            self.revoking = frozenset(answer.revoking_partitions)
        self.reading = self.owned | (self.reading & self.revoking if is_slow else frozenset())
        if not self.revoking:
            self.reads_until = sent_at + lease_us
