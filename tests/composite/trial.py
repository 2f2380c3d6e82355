"""One trial: the real system and the model execute a random history, compared throughout."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from google.protobuf.message import Message

from coordinator.mux.catalog_types import SnapshotState
from coordinator.mux.stage import SERVICE_STAGES
from coordinator.mux.types import Read, ReadAnswered, ReadSpan, Stage, Tenure
from testkit.composite.comparison import check_read, check_reply
from testkit.composite.cuts import begin, decide
from testkit.composite.furniture import furnishing, joining, registering, reporting
from testkit.composite.harness import CompositeReplica, CompositeService, Entry, entry
from testkit.composite.model import CODES, METHODS, Model, Outcome
from testkit.composite.views import facts_of_model, facts_of_sections
from testkit.composite.workload import CompositeWorkload
from testkit.composite.world import Call, CompositeRefused
from tests.composite.indexes import check_indexes, check_session_indexes
from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Error, Reason
from viewstamp.api.log.v1 import log_pb2
from viewstamp.framing import frame_all

READS = (
    "GetUser", "WhoAmI", "GetStream", "ListStreams", "GetTopic", "ListTopics", "ListWatermarks",
    "CheckAccess",
    "GetConsumerGroup", "ListConsumerGroups", "SyncConsumerGroup", "KeepAliveConsumerGroup",
    "ListAllConsumerGroups", "FetchOffsets", "FindOffsets",
    "GetBroker", "ListBrokers", "KeepAliveBroker", "ListPlacements",
)  # fmt: skip
# Feature levels at which histories begin. All of them end at the highest.
LEVELS = (*range(1, limits.FEATURE_LEVEL_MAX), *[limits.FEATURE_LEVEL_MAX] * 9)
CHECK_AFTER_MS = (0, limits.MEMBER_CHECK_INTERVAL_MS, limits.MEMBER_TIMEOUT_MAX_US // 1_000)
# Members that never send a heartbeat are removed one by one, each after another target.
ROUNDS_TO_REST = 60


@dataclass
class CompositeTrial:
    """A history as it grows, one prepare at a time."""

    random: Random
    replica: CompositeReplica = field(default_factory=CompositeReplica)
    model: Model = field(default_factory=Model)
    log: list[Entry] = field(default_factory=list)
    # Op -> reads behind it, by token; and what the model answered.
    reads: dict[int, list[Read]] = field(default_factory=dict)
    token: int = 0
    # (command or read, "ok" or the reason) -> how often this happened.
    met: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Found the cluster."""
        self.workload = CompositeWorkload(self.random, self.model)
        self.level = LEVELS[self.random.randrange(len(LEVELS))]
        self.elapsed_ms = 0
        # A second set of machines gets only the recorded batches: no reads, no restarts.
        self.mirrors = {stage: CompositeService(stage) for stage in SERVICE_STAGES}
        self.commit(self.workload.writer.timestamp, [self.workload.bootstrap()])

    def run(self, prepares: int) -> None:
        """Apply this many random prepares, then complete all pending work."""
        # Topics that come later than brokers are placed at once.
        comes = self.random.randrange(3) if self.level >= limits.FEATURE_LEVEL_BROKERS else 0
        if comes == 1:
            self.commit(*registering(self.workload.writer))
        if self.random.randrange(4):
            self.commit(*furnishing(self.workload.writer))
            self.commit(*joining(self.workload.writer, 0))
            if self.level >= limits.FEATURE_LEVEL_OFFSETS and self.random.randrange(4):
                self.commit(*reporting(self.workload.writer))
            for _ in range(2):  # the first targets are outdated by the second member
                self.commit(*self.workload.drain(self.replica.proposals))
            # Who comes later must wait for what others give up.
            self.commit(*joining(self.workload.writer, 1))
            for _ in range((0, 0, 0, 2)[self.random.randrange(4)]):  # nobody gives up in time
                self.commit(*self.workload.drain(self.replica.proposals))
        if comes == 2:
            self.commit(*registering(self.workload.writer))
        raised_before = self.random.randrange(prepares)
        for number in range(prepares):
            if number == raised_before:
                self.level = limits.FEATURE_LEVEL_MAX
            self.commit(*self.workload.prepare(self.replica.proposals))
            self.look()
            self.disturb()
            if self.random.randrange(8) == 0:
                self.cut()
        self.come_to_rest()

    def commit(self, timestamp: int, requests: list[log_pb2.LoggedRequest]) -> None:
        """Apply a prepare to both; replies and state must be equal."""
        expected = self.model.commit(timestamp, requests, self.level)
        self.log.append(entry(timestamp, requests, self.level))
        self.replica.commit(self.log[-1])
        self.replica.settle()
        replies = self.replica.replies[self.model.op]
        for reply, answer in zip(replies, expected, strict=True):
            check_reply(reply, answer)
            self._count(answer.codes, answer.spans)
        self.check_state()
        self.check_proposals()

    def check_state(self) -> None:
        """Fail unless the state of all stages is the model's, and follows from the log alone."""
        got: dict[Any, Any] = {}
        for stage, service in self.replica.services.items():
            entities = service.entities()
            got |= facts_of_sections(stage, entities)
            check_indexes(stage, service.machine.state, entities)
        check_equal(got, facts_of_model(self.model))
        self._check_projections()
        self._check_sessions()
        check_session_indexes(self.replica.mux.sessions)
        digests = self.replica.digests()
        for stage, mirror in self.mirrors.items():
            mirror_batches(mirror, self.replica.services[stage])
            assert mirror.machine.state_digest() == digests[stage], stage.name

    def _check_projections(self) -> None:
        """Fail unless two stages have each projection, and it says the same in both."""
        found: dict[str, list[bytes]] = {}
        for service in self.replica.services.values():
            section = service.machine.domain.section
            for name, digest in section.projection_digests(service.machine.state).items():
                found.setdefault(name, []).append(digest)
        assert found.keys() == {"access", "watermarks"}
        for name, digests in found.items():
            assert len(digests) == 2, f"{len(digests)} stages have the projection {name}"
            assert digests[0] == digests[1], f"two stages say {name} otherwise: {digests}"

    def _check_sessions(self) -> None:
        mux, world = self.replica.mux, self.model.world
        got = {s.session_id: (s.user_id, s.nonce, s.last_number) for s in mux.sessions.live()}
        wanted = {s.id: (s.user_id, s.nonce, s.last_number) for s in world.sessions.values()}
        check_equal(got, wanted)
        windows = {key: mux.replies.window(key) for key in world.sessions}
        kept = {k: (w.acked, w.last_applied, set(w.replies)) for k, w in windows.items() if w}
        known = self.model.windows.items()
        check_equal(kept, {k: (w.acked, w.last_applied, set(w.replies)) for k, w in known})

    def check_proposals(self) -> None:
        """Fail unless the primary was told of all pending work, and of its time."""
        told = {
            (METHODS[code].name, *_values(METHODS[code].request.FromString(payload))): due
            for (code, payload), due in self.replica.proposals.items()
        }
        groups_told = {key[1] for key in told if key[0] == "Assign"}
        for user in self.model.world.users.values():
            for name, token in user.tokens.items():
                key = ("ExpirePersonalAccessToken", user.id, name, token.created)
                assert not token.expires_at or key in told, f"{key} was not proposed"
        for _, _, group in self.model.world.groups():
            if group.epoch != group.assigned_epoch:
                assert group.id in groups_told, f"nobody asked for a target of group {group.id}"
            if group.expiry_due:
                expiry = ("ExpireOffsets", group.id, group.expiry_due, 0)
                assert told.get(expiry) == group.expiry_due, f"{expiry} was not proposed"
            for member in group.members.values():
                place = (group.id, member.session_id)
                timers = (
                    (("CompleteRevocation", *place, member.deadline, 0), member.deadline),
                    (
                        ("ExpireMember", *place, member.joined, member.absent_until, 0),
                        member.absent_until,
                    ),
                )
                for timer, due in timers:
                    assert not due or told.get(timer) == due, f"{timer} was not proposed"

    def look(self) -> None:
        """Send a few reads behind the last prepare; the answers must be the model's."""
        asked = [self._read() for _ in range((0, 0, 1, 4)[self.random.randrange(4)])]
        self.reads[self.model.op] = [read for read, _ in asked]
        for read, _ in asked:
            self.replica.read(read)
        is_dying = self.random.randrange(3) == 0
        if is_dying:
            # These reads are on their way to a service that dies now.
            for _ in range(self.random.randrange(4)):
                self.replica.step()
            self._restart(SERVICE_STAGES[self.random.randrange(len(SERVICE_STAGES))])
        self.replica.settle()
        for read, expected in asked:
            answered = self.replica.reads[read.token]
            codes = [span.code for span in read.spans]
            if not is_dying or answered.error is None:
                check_read(codes, answered, expected)
                self._count(codes, expected)

    def _count(self, codes: list[int], spans: list[list[Outcome]]) -> None:
        for code, outcomes in zip(codes, spans, strict=False):
            for outcome in outcomes:
                came_to = outcome.reason if isinstance(outcome, CompositeRefused) else "ok"
                self.met[METHODS[code].name, came_to] += 1

    def _read(self) -> tuple[Read, list[list[Outcome]]]:
        """Return a read, and the model's answer to it."""
        self.token += 1
        user_id, stamp, session_id = self.workload.reader()
        call = Call(self.model.revision, 0, user_id, stamp, session_id)
        known = [name for name in READS if METHODS[CODES[name]].since_level <= self.level]
        spans, expected = [], []
        for _ in range(self.random.randrange(1, 3)):
            name = known[self.random.randrange(len(known))]
            if self.model.world.to_fence and not self.random.randrange(3):
                name = "KeepAliveBroker"  # of one that is about to be fenced, mostly
            items = [self.workload.query(name, user_id, session_id) for _ in range(2)]
            spans.append(ReadSpan(CODES[name], len(items), frame_all(items)))
            expected.append([self.model.read(CODES[name], item, call) for item in items])
        return Read(self.token, tuple(spans), user_id, stamp, session_id), expected

    def disturb(self) -> None:
        """Sometimes restart a service, lead with another replica, or look for silent members."""
        choice = self.random.randrange(12)
        if choice < len(SERVICE_STAGES):
            self._restart(SERVICE_STAGES[choice])
            self.replica.settle()
            self.check_state()
        elif choice == len(SERVICE_STAGES):
            self.replica.become_primary()
            self.replica.settle()
            self.check_proposals()
        elif choice <= len(SERVICE_STAGES) + 2 and self.level >= limits.FEATURE_LEVEL_MEMBERS:
            self.elapsed_ms += CHECK_AFTER_MS[self.random.randrange(len(CHECK_AFTER_MS))]
            self._learn_who_leaves(self.replica.ask_for_silent(Tenure(1, self.elapsed_ms)))

    def _restart(self, stage: Stage) -> None:
        self.replica.restart(stage)
        # A service that comes back remembers nobody's silence.
        if stage == Stage.CONSUMER_GROUPS:
            self.model.world.leaving.clear()
        if stage == Stage.STREAMS:
            self.model.world.to_fence.clear()

    def _learn_who_leaves(self, told: list[tuple[int, bytes]]) -> None:
        """Tell the model whom the services take for silent, and forget those who are gone."""
        world = self.model.world
        present = {
            (group.id, member.session_id, member.joined)
            for _, _, group in world.groups()
            for member in group.members.values()
        }
        for code, item in told:
            request: Any = METHODS[code].request.FromString(item)
            if METHODS[code].name == "ExpireMember":
                who = (request.group_id, request.session_id, request.joined_revision)
                world.leaving.add(who)
            else:
                world.to_fence.add((request.broker_id, request.broker_epoch))
        world.leaving &= present
        world.to_fence &= {(broker.id, broker.epoch) for broker in world.brokers.values()}

    def cut(self) -> None:
        """Cut all stages here. Decide now or later; adopt the generation, or do not."""
        catalog = self.replica.mux.catalog
        newest = catalog.current()
        if newest.state is SnapshotState.CREATED:
            self._internally(decide(newest.generation, self.random))
        else:
            generation = catalog.last_generation + 1
            self._internally(begin(generation))
            self.check_cut(generation)
        if self.random.randrange(2):
            self.replica.release(catalog.latest_completed().generation)

    def check_cut(self, generation: int) -> None:
        """Fail unless a replica that starts from the cut has the same state as this one."""
        twin = CompositeReplica.restored(self.replica.cuts, generation)
        assert sorted(twin.mux.entities()) == sorted(self.replica.mux.entities())
        assert list(twin.mux.catalog.entities()) == list(self.replica.mux.catalog.entities())
        check_session_indexes(twin.mux.sessions)
        for stage, service in twin.services.items():
            entities = service.entities()
            assert entities == self.replica.services[stage].entities(), stage.name
            check_indexes(stage, service.machine.state, entities)

    def continued(self, generation: int) -> CompositeReplica:
        """Return a replica that starts from a cut and then applies the prepares after it."""
        twin = CompositeReplica.restored(self.replica.cuts, generation)
        for logged in self.log[twin.mux.op :]:
            twin.commit(logged)
            twin.settle()
        return twin

    def _internally(self, request: log_pb2.LoggedRequest) -> None:
        """Apply a command that changes nothing that the model has."""
        self.workload.writer.timestamp += 1
        self.model.op += 1
        self.model.revision += 1
        self.log.append(entry(self.workload.writer.timestamp, [request], self.level))
        self.replica.commit(self.log[-1])
        self.replica.settle()
        (reply,) = self.replica.replies[self.model.op]
        assert not reply.error and not reply.spans[0].errors, reply
        self.check_state()

    def come_to_rest(self) -> None:
        """Execute all proposals until none is left, then check that no work is pending."""
        for _ in range(ROUNDS_TO_REST):
            if not self.replica.proposals:
                break
            self.commit(*self.workload.drain(self.replica.proposals))
        assert not self.replica.proposals, f"proposals never end: {self.replica.proposals}"
        check_at_rest(self.model)

    def replayed(self, seed: int) -> CompositeReplica:
        """Return a replica that executes the same log, with all else in another order."""
        random = Random(seed)
        replica = CompositeReplica(random)
        for op, logged in enumerate(self.log, start=1):
            while not replica.has_room or random.random() < 0.4:
                if not replica.step():
                    break
            replica.commit(logged)
            for read in self.reads.get(op, ()):
                replica.read(read)
            if random.random() < 0.25:
                replica.restart(random.choice(SERVICE_STAGES))
        replica.settle()
        return replica


def check_at_rest(model: Model) -> None:
    """Fail unless each partition of a group with members has the owner that the assignment says."""
    tokens = [token for user in model.world.users.values() for token in user.tokens.values()]
    assert not any(token.expires_at for token in tokens), f"expired tokens are left: {tokens}"
    for _, topic, group in model.world.groups():
        members = group.members.values()
        assert group.epoch == group.assigned_epoch, f"group {group.id} waits for its target"
        assert group.partitions_count == len(topic.partitions), f"group {group.id} is out of date"
        for member in members:
            assert (member.owned, member.revoking) == (member.target, set()), member
            assert not member.absent_until, f"a place is kept for ever: {member}"
        owned = sorted(partition for member in members for partition in member.owned)
        assert not members or owned == list(range(group.partitions_count)), f"group {group.id}"
        sizes = {len(member.owned) for member in members}
        assert not sizes or max(sizes) - min(sizes) <= 1, f"group {group.id} has sizes {sizes}"


def _values(message: Message) -> tuple[Any, ...]:
    """Return the values of all fields of a message."""
    return tuple(getattr(message, field.name) for field in message.DESCRIPTOR.fields)


def check_equal(got: dict[Any, Any], wanted: dict[Any, Any]) -> None:
    """Fail with the differences of two dictionaries, instead of their whole contents."""
    differences = {
        key: (got.get(key), wanted.get(key))
        for key in (*wanted, *got)
        if key not in got or key not in wanted or got[key] != wanted[key]
    }
    assert not differences, f"what is, and what the model says: {differences}"


def mirror_batches(mirror: CompositeService, live: CompositeService) -> None:
    """Send the mirror the batches that the live service got since the last time."""
    done = mirror.machine.sequence
    answers = [mirror.apply(batch) for batch in live.sent[done:]]
    assert answers == live.answered[done:], f"{live.stage.name}: a replay answers otherwise"


def check_continued(whole: CompositeReplica, twin: CompositeReplica) -> None:
    """Fail unless a replica that started from a cut has the replies and state of the whole one."""
    assert twin.replies.items() <= whole.replies.items(), "replies behind a cut differ"
    assert twin.digests() == whole.digests(), "the state behind a cut differs"
    assert chain_of(twin) == chain_of(whole)[-len(chain_of(twin)) :], "digests behind a cut differ"


def chain_of(replica: CompositeReplica) -> list[bytes]:
    """Return the digests of what the log led to, of all ops from the start of a replica on."""
    digests = replica.mux.digests
    found = (digests.at(op) for op in range(digests.last_op + 1))
    return [digest for digest in found if digest is not None]


def check_same(one: CompositeReplica, other: CompositeReplica) -> None:
    """Fail unless two replicas answered the same bytes, and sent the same bytes to every stage."""
    assert one.replies == other.replies, "replies depend on the order of answers"
    assert one.ended == other.ended, (
        "the order in which sessions end depends on the order of answers"
    )
    for stage, service in one.services.items():
        assert service.sent == other.services[stage].sent, f"batches of {stage.name} differ"
        assert service.answered == other.services[stage].answered, f"answers of {stage.name} differ"
    assert one.digests() == other.digests(), "the state depends on the order of answers"
    assert chain_of(one) == chain_of(other), "digests depend on the order of answers"
    for token, answered in other.reads.items():
        before = one.reads[token]
        # The service of a read that failed died, and the client may repeat it. Who is taken for
        # silent is for the primary to say, which the other replica is not.
        is_open = answered.error or before.error or _was_of_silent(before)
        assert is_open or answered == before, f"read {token} differs"


def _was_of_silent(answered: ReadAnswered) -> bool:
    """Return whether a sign of life was refused, since the member is about to be removed."""
    errors = [Error.FromString(each.error) for span in answered.spans for each in span.errors]
    return any(error.reason == Reason.REASON_OVERLOADED for error in errors)


assert all(CODES[name] in METHODS for name in READS), "a read has no method"
