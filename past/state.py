"""The state at one revision: a mux and the machines of all domains in one process. Pure.

It is led through committed entries as a replica is, and so comes to the same state, answers and
refusals. Nobody is answered, nothing is proposed, and what a cut freezes is let go at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coordinator.base.slices import at_once
from coordinator.mux.catalog_types import Restored, Snapshot
from coordinator.mux.entities import Session
from coordinator.mux.mux import FROM_THE_BEGINNING, Mux
from coordinator.mux.stage import SERVICE_STAGES, Stage
from coordinator.mux.types import (
    CommittedPrepare,
    CutTaken,
    MuxEffect,
    Read,
    ReadAnswered,
    ReadPostponed,
    SendBatch,
    StageBatch,
)
from coordinator.stages import codec
from past.cutting import beginning_of
from past.domains import DOMAINS, all_routes
from services.runtime.changes import RecentChanges
from services.runtime.installing import Installed
from services.runtime.machine import Machine
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.format.digest import StateDigest
from viewstamp.format.prepare import NO_PARENT, SealedPrepare
from viewstamp.machine.freezing import Entity


class ForeignEntryError(Exception):
    """An entry does not follow the one before it: it is of a log that a new view discarded."""


class PastState:
    """What the log up to `op` and `revision` has led to.

    A state that is in the midst of an entry `is_partial`, and cannot go on.
    """

    def __init__(
        self,
        restored: Restored = FROM_THE_BEGINNING,
        sections: Mapping[Stage, Installed[Any]] | None = None,
        timestamp_us: int = 0,
        checksum: bytes = NO_PARENT,
    ) -> None:
        """Begin behind a cut, or with the empty state. Raises RestoreError.

        `checksum` has 16 bytes, and is that of the last entry.
        """
        self.is_partial = False
        self.machines: dict[Stage, Machine[Any]] = {
            stage: Machine(DOMAINS[stage]) for stage in SERVICE_STAGES
        }
        for stage, installed in (sections or {}).items():
            self.machines[stage].activate(installed)
        self._routes = all_routes()
        self._mux = Mux(self._routes, codec.ProtobufCodec(), restored)
        self._skipped_revision = 0
        self._timestamp_us = timestamp_us  # log time of the last entry
        self._checksum = checksum
        self._answers: list[ReadAnswered] = []
        self.forget_changes()

    @property
    def op(self) -> int:
        """The last entry, which may be there in part."""
        return self._mux.op

    @property
    def revision(self) -> int:
        """The last revision."""
        return self._mux.revision

    @property
    def feature_level(self) -> int:
        """The feature level in force."""
        return self._mux.feature_level

    @property
    def timestamp_us(self) -> int:
        """Log time of the last entry."""
        return self._timestamp_us

    @property
    def checksum(self) -> bytes:
        """The identity of the last entry, the parent of the next one, 16 bytes."""
        return self._checksum

    def live_sessions(self) -> list[Session]:
        """Return the sessions that have not ended, by ascending id."""
        return list(self._mux.sessions.live())

    def snapshots(self) -> tuple[Snapshot, ...]:
        """Return all generations of the catalog, newest first."""
        return self._mux.catalog.list_after(0, self.last_generation())

    def has_members(self) -> bool:
        """Return whether the log has named other members than those of the founding."""
        return self._mux.catalog.members is not None

    def last_generation(self) -> int:
        """Return the number of the newest generation ever begun or asked for."""
        return self._mux.catalog.last_generation

    def entities(self, stage: Stage) -> Iterator[Entity]:
        """Yield all entities of a section, by ascending kind and key."""
        if stage is Stage.SESSIONS:
            return iter(sorted(self._mux.entities()))
        if stage is Stage.CATALOG:
            return self._mux.catalog.entities()
        machine = self.machines[stage]
        return machine.domain.section.entities(machine.state)

    @property
    def next_revision(self) -> int:
        """The first revision that the next entry may have."""
        return max(self.revision, self._skipped_revision) + 1

    def skip_revisions(self, count: int) -> None:
        """Leave out revisions that another log may have given."""
        self._skipped_revision = self.revision + count

    def go_on_from_here(self) -> None:
        """Let another log continue behind the beginning of an entry, whose rest is given up."""
        self.is_partial = False

    def apply(self, prepare: SealedPrepare, last_revision: int | None = None) -> None:
        """Apply the next committed entry, or its commands up to a revision.

        Raises ForeignEntryError.
        """
        assert not self.is_partial, "the rest of an entry cannot follow its beginning"
        self._check_follows(prepare)
        requests = at_once(codec.logged_requests(codec.requests_of(prepare.body)))
        if last_revision is not None and last_revision < prepare.last_revision:
            self.is_partial = True
            requests = beginning_of(requests, last_revision - prepare.first_revision + 1)
        header = prepare.header
        self._timestamp_us = header.timestamp
        entry = CommittedPrepare(
            op=header.op,
            view=header.view,
            first_revision=header.first_revision,
            timestamp=header.timestamp,
            feature_level=header.feature_level,
            requests=requests,
        )
        self._carry_out(self._mux.commit(entry))
        assert self._mux.unapplied == 0, f"op {header.op} was not applied"

    def _check_follows(self, prepare: SealedPrepare) -> None:
        if prepare.parent != self._checksum:
            raise ForeignEntryError(
                f"op {prepare.op} of view {prepare.view} follows another entry than op {self.op}"
            )
        self._checksum = prepare.checksum

    def read(self, read: Read) -> ReadAnswered:
        """Answer a read of methods that services own.

        A method of a later build is refused: a service may be upgraded before its coordinator.
        """
        if any(span.code not in self._routes for span in read.spans):
            refusal = Refusal(
                Reason.REASON_UNIMPLEMENTED,
                "the coordinator's build cannot read this at an earlier revision: upgrade it",
            )
            error = refusal.to_error().SerializeToString()
            return ReadAnswered(read.token, self.revision, self.op, (), error)
        self._carry_out(self._mux.read(read))
        return self._answers.pop()

    def digest(self) -> bytes:
        """Return the running digest of what the log led to; empty in the midst of an entry."""
        return b"" if self.is_partial else self._mux.digests.at(self.op) or b""

    def digests(self) -> dict[Stage, bytes]:
        """Return the digest of each stage's entities, found by a walk over all of them."""
        sessions = StateDigest()
        for kind, key, canonical in self._mux.entities():
            sessions.add(kind, key, canonical)
        found = {stage: machine.state_digest() for stage, machine in self.machines.items()}
        return {Stage.SESSIONS: sessions.to_bytes(), **found}

    def username(self, user_id: int) -> str:
        """Return the name of a user; empty if there is none of this id."""
        user = self.machines[Stage.USERS].state.users.rows.get(user_id)
        return "" if user is None else str(user.username)

    def forget_changes(self, kept_bytes_max: int = 0) -> None:
        """Forget what was changed so far, and keep so much of what will be."""
        for machine in self.machines.values():
            machine.changes = RecentChanges(
                machine.domain, machine.state, machine.revision, kept_bytes_max
            )

    def _carry_out(self, effects: Sequence[MuxEffect]) -> None:
        sent: deque[StageBatch] = deque()
        self._take(effects, sent)
        while sent:
            batch = sent.popleft()
            machine = self.machines[batch.stage]
            clock_us = 0 if batch.sequence else self._timestamp_us
            applied = machine.apply(codec.encode_batch(batch, clock_us))
            machine.alarms.clear()  # the service has told of them
            reply = at_once(codec.decode_reply(batch.stage, applied.reply))
            self._take(self._mux.reply(reply), sent)

    def _take(self, effects: Sequence[MuxEffect], sent: deque[StageBatch]) -> None:
        for effect in effects:
            match effect:
                case SendBatch(batch):
                    sent.append(batch)
                case CutTaken():
                    self._release(effect.generation)
                case ReadAnswered():
                    self._answers.append(effect)
                case ReadPostponed():
                    raise AssertionError("a machine without other reads has time for one")

    def _release(self, generation: int) -> None:
        self._mux.release(generation)
        for machine in self.machines.values():
            machine.freezer.release(generation)
