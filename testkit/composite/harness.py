"""One replica without its shells: the real mux, the real codec, the three real machines.

Everything between mux and machines is passed as bytes, as on the wire. Who answers when is the
caller's choice: at once, or whenever a seeded scheduler lets a stage go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any, Final

from coordinator.base.slices import at_once
from coordinator.gateway.request_runs import mux_route
from coordinator.gateway.routes import Routes
from coordinator.mux.mux import Mux
from coordinator.mux.stage import SERVICE_STAGES
from coordinator.mux.types import (
    Applied,
    CommittedPrepare,
    CutTaken,
    MuxEffect,
    Read,
    ReadAnswered,
    RequestReply,
    SendBatch,
    Stage,
    Tenure,
)
from coordinator.stages import codec
from services.runtime.handlers import description_of
from services.runtime.machine import Machine
from testkit.composite.cuts import CUT_ROUTES, Cuts
from testkit.logged_requests import decode_requests
from testkit.service_domains import all_domains
from viewstamp import limits
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.log.v1 import log_pb2
from viewstamp.errors import Refusal
from viewstamp.format.digest import StateDigest

DOMAINS: Final = all_domains()
RESTARTING: Final = Refusal(Reason.REASON_DOMAIN_RESTARTING, "the service is restarting")

# One log entry: its time, its body as the journal holds it, and its feature level.
Entry = tuple[int, bytes, int]


def routes() -> dict[int, Any]:
    """Return the routes, put together from what the machines describe, as the coordinator does."""
    claimed = Routes()
    for stage in SERVICE_STAGES:
        claimed.update(description_of(DOMAINS[stage]))
    return {method.code: mux_route(method) for method in claimed.methods()} | CUT_ROUTES


ROUTES: Final = routes()


class CompositeService:
    """One machine and the batches on their way to it and back."""

    def __init__(self, stage: Stage) -> None:
        """Begin with an empty machine."""
        self.stage = stage
        self.machine: Machine[Any] = Machine(DOMAINS[stage])
        # Every logged batch ever sent, and the answers that were delivered; the replay log.
        self.sent: list[bytes] = []
        self.answered: list[bytes] = []
        self.arriving: deque[bytes] = deque()
        self.leaving: deque[bytes] = deque()

    @property
    def is_busy(self) -> bool:
        """Whether a batch is on its way to or from the machine."""
        return bool(self.arriving or self.leaving)

    def send(self, batch: pb.Batch) -> None:
        """Send a batch; what is logged is recorded before it is sent."""
        encoded = batch.SerializeToString(deterministic=True)
        if batch.sequence:
            self.sent.append(encoded)
        self.arriving.append(encoded)

    def work(self) -> None:
        """Apply the next batch."""
        self.leaving.append(self.apply(self.arriving.popleft()))

    def answer(self) -> pb.BatchReply:
        """Deliver the next answer."""
        encoded = self.leaving.popleft()
        reply = pb.BatchReply.FromString(encoded)
        if reply.sequence:
            self.answered.append(encoded)
        return reply

    def restart(self) -> None:
        """Start an empty machine, replay the log, and answer what was not answered at death."""
        self.machine = Machine(DOMAINS[self.stage])
        self.arriving.clear()
        answers = [self.apply(batch) for batch in self.sent]
        assert answers[: len(self.answered)] == self.answered, (
            f"{self.stage.name} answered otherwise when its log was replayed"
        )
        self.leaving = deque(answers[len(self.answered) :])

    def entities(self) -> list[tuple[int, bytes, bytes]]:
        """Return the machine's section, checked to be in order."""
        entities = list(self.machine.domain.section.entities(self.machine.state))
        order = [(kind, key) for kind, key, _ in entities]
        assert order == sorted(order), f"{self.stage.name} yields entities out of order"
        return entities

    def apply(self, encoded: bytes) -> bytes:
        """Apply a batch and return the answer."""
        applied = self.machine.apply(pb.Batch.FromString(encoded))
        assert not self.machine.alarms, f"{self.stage.name}: {self.machine.alarms}"
        return applied.reply.SerializeToString(deterministic=True)


class CompositeReplica:
    """A mux and its services. With `scheduler`, nothing happens until `step` or `settle`."""

    def __init__(self, scheduler: Random | None = None) -> None:
        """Begin before op 1."""
        self.mux = Mux(ROUTES, codec.ProtobufCodec())
        self.services = {stage: CompositeService(stage) for stage in SERVICE_STAGES}
        self.cuts = Cuts()
        self.replies: dict[int, tuple[RequestReply, ...]] = {}
        self.reads: dict[int, ReadAnswered] = {}
        self.ended: list[int] = []
        # Pending proposals as the primary keeps them: (code, request) -> due.
        self.proposals: dict[tuple[int, bytes], int] = {}
        self._scheduler = scheduler

    @classmethod
    def restored(cls, cuts: Cuts, generation: int) -> CompositeReplica:
        """Begin after a cut, from its sections."""
        replica = cls()
        replica.mux = Mux(ROUTES, codec.ProtobufCodec(), cuts.restored(generation))
        for stage, service in replica.services.items():
            service.machine = cuts.installed(generation, DOMAINS[stage], stage)
        replica.cuts.sections |= cuts.sections
        return replica

    def release(self, generation: int) -> None:
        """Adopt a generation everywhere."""
        self.mux.release(generation)
        for service in self.services.values():
            service.machine.freezer.release(generation)

    # --- The log and reads ---

    def commit(self, entry: Entry) -> None:
        """Take in the next log entry."""
        timestamp, body, level = entry
        requests = decode_requests(body)
        prepare = CommittedPrepare(
            op=self.mux.op + 1,
            view=1,
            first_revision=self.mux.revision + 1,
            timestamp=timestamp,
            feature_level=level,
            requests=requests,
        )
        self._carry_out(self.mux.commit(prepare))

    def read(self, read: Read) -> None:
        """Read after the last log entry."""
        self._carry_out(self.mux.read(read))

    def become_primary(self) -> None:
        """Forget all proposals and ask for them anew, as a new primary does."""
        self.proposals.clear()
        self._carry_out(self.mux.poke_proposals())

    def ask_for_silent(self, tenure: Tenure) -> list[tuple[int, bytes]]:
        """Ask who was silent for too long, as the primary does from time to time.

        Returns the codes and requests of what ends them, also those that were pending already.
        """
        pending, self.proposals = self.proposals, {}
        self._carry_out(self.mux.poke_proposals(tenure))
        self.settle()
        told, self.proposals = self.proposals, pending
        for key, due in told.items():
            self.proposals.setdefault(key, due)
        return list(told)

    @property
    def has_room(self) -> bool:
        """Whether one more prepare may be in flight."""
        return self.mux.unapplied < limits.UNAPPLIED_PREPARES_MAX

    # --- Time ---

    def step(self) -> bool:
        """Let one service that has something to do go on by one step; False if none has."""
        busy = [service for service in self.services.values() if service.is_busy]
        if not busy:
            return False
        service = busy[0] if self._scheduler is None else self._scheduler.choice(busy)
        if service.leaving and (not service.arriving or self._prefers_to_answer()):
            reply = service.answer()
            for proposal in reply.proposals:
                self.proposals.setdefault((proposal.code, proposal.request), proposal.due)
            self._carry_out(self.mux.reply(at_once(codec.decode_reply(service.stage, reply))))
        else:
            service.work()
        return True

    def settle(self) -> None:
        """Go on until nothing is on its way."""
        while self.step():
            pass
        assert self.mux.unapplied == 0, f"{self.mux.unapplied} prepares are stuck"

    def restart(self, stage: Stage) -> None:
        """Let a service die and come back; its reads on their way are lost."""
        self.services[stage].restart()
        self._carry_out(self.mux.fail_reads(stage, RESTARTING.to_error().SerializeToString()))

    def _prefers_to_answer(self) -> bool:
        return self._scheduler is None or self._scheduler.random() < 0.5

    def _carry_out(self, effects: Sequence[MuxEffect]) -> None:
        for effect in effects:
            match effect:
                case SendBatch(batch):
                    self.services[batch.stage].send(codec.encode_batch(batch))
                case CutTaken():
                    machines = {stage: s.machine for stage, s in self.services.items()}
                    self.cuts.take(effect, machines)
                case Applied():
                    last = max(self.replies, default=effect.op - 1)
                    assert effect.op == last + 1, f"op {effect.op} applied out of turn"
                    self.replies[effect.op] = effect.replies
                    self.ended.extend(effect.ended_sessions)
                case ReadAnswered():
                    assert effect.token not in self.reads, f"read {effect.token} answered twice"
                    self.reads[effect.token] = effect

    # --- State ---

    def digests(self) -> dict[Stage, bytes]:
        """Return the full-walk digest of every stage."""
        digests = {stage: s.machine.state_digest() for stage, s in self.services.items()}
        sessions = StateDigest()
        for kind, key, canonical in self.mux.entities():
            sessions.add(kind, key, canonical)
        return {Stage.SESSIONS: sessions.to_bytes(), **digests}


def entry(
    timestamp: int,
    requests: Sequence[log_pb2.LoggedRequest],
    level: int = limits.FEATURE_LEVEL_MAX,
) -> Entry:
    """Return a log entry."""
    body = log_pb2.PrepareBody(requests=requests).SerializeToString(deterministic=True)
    return timestamp, body, level
