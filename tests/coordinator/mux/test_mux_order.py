"""In any order of answers the mux behaves like one command at a time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.mux.catalog_types import SnapshotState
from coordinator.mux.mux import Mux
from coordinator.mux.types import (
    TRANSACT_CODE,
    Applied,
    CatalogChanged,
    CommittedPrepare,
    CutTaken,
    IndexedError,
    LoggedRequest,
    LoggedSpan,
    MuxEffect,
    Read,
    ReadAnswered,
    ReadSpan,
    RegisterSession,
    RequestReply,
    Route,
    SendBatch,
    Stage,
    StageBatch,
)
from testkit.composite.chains import catalog_command
from tests.coordinator.mux.fakes import FakeCodec, FakeStage
from tests.coordinator.mux.sequential import SERVICES, Sequential, SequentialClient
from viewstamp import limits
from viewstamp.framing import frame_all

# Stages whose commands have made-up codes; those of the catalog have real ones.
OWNERS = tuple(stage for stage in SERVICES if stage != Stage.CATALOG)
BEFORE_CATALOG = tuple(stage for stage in OWNERS if stage < Stage.CATALOG)
USERS = (1, 2, 3)
# Sessions 1 to 6: two per user, registered by the first prepare.
SESSION_OWNERS = {1: 1, 2: 1, 3: 2, 4: 2, 5: 3, 6: 3}
COMMAND_CODES = range(100, 108)
# The catalog commands that anybody may send, and how many numbers each takes.
CATALOG_CODES = {401: 1, 402: 1, 403: 3, 404: 2}
BEGIN, COMPLETE, FAIL = 405, 406, 407
QUERY_CODES = range(150, 153)
OLD_STAMP, NEW_STAMP = 12, 1_000_000


@st.composite
def command_route(draw: st.DrawFn, code: int) -> Route:
    """Return any route that options can describe."""
    owner = draw(st.sampled_from(OWNERS))
    if owner == Stage.USERS:
        back = draw(st.sampled_from([frozenset[Stage](), frozenset({Stage.SESSIONS})]))
        return Route(code, owner, None, 0, back, draw(st.sampled_from([False, True])))
    resolve = draw(st.none() | st.sampled_from([s for s in OWNERS if s < owner]))
    allowed = [s for s in (Stage.SESSIONS, *OWNERS) if s < owner and s != resolve]
    backward: set[Stage] = draw(st.sets(st.sampled_from(allowed)))
    return Route(code, owner, resolve, 0, frozenset(backward))


@st.composite
def query_route(draw: st.DrawFn, code: int) -> Route:
    """Return any route of a read."""
    owner = draw(st.sampled_from(SERVICES))
    before = [stage for stage in OWNERS if stage < owner]
    resolve = draw(st.none() | st.sampled_from(before)) if before else None
    return Route(code, owner, resolve, is_query=True)


@st.composite
def catalog_route(draw: st.DrawFn, code: int) -> Route:
    """Return a route of a command that the catalog owns."""
    if code >= BEGIN:
        return Route(code, Stage.CATALOG, internal=True)
    return Route(code, Stage.CATALOG, draw(st.none() | st.sampled_from(BEFORE_CATALOG)))


@st.composite
def command(draw: st.DrawFn, route: Route) -> bytes:
    """Return a command: the reason of its refusal, and the stages of its effect."""
    words = [draw(st.sampled_from("abcd"))]
    words += draw(st.sampled_from([[], [], [], [], ["fail"], ["unresolved"]]))
    targets = [s for s in Stage if route.sends_forward(s) or s in route.emits_backward]
    if len(targets) > 0 and draw(st.booleans()):
        chosen: set[Stage] = draw(st.sets(st.sampled_from(targets), min_size=1))
        words.append("emit=" + ".".join(str(int(stage)) for stage in sorted(chosen)))
        if draw(st.booleans()):
            words.append(f"end={draw(st.sampled_from(USERS))}")
    return ",".join(words).encode()


@st.composite
def span(draw: st.DrawFn, routes: dict[int, Route], user_id: int) -> LoggedSpan:
    """Return a span of commands, or of transactions."""
    code = draw(st.sampled_from([*COMMAND_CODES, TRANSACT_CODE, *CATALOG_CODES]))
    count = draw(st.integers(1, 3))
    stamp = draw(st.sampled_from([NEW_STAMP, NEW_STAMP, NEW_STAMP, OLD_STAMP]))
    holes = draw(st.sampled_from([(), (), (), (0,), (count - 1,)]))
    refused = tuple(IndexedError(index, b"NORMALIZE") for index in holes)
    if code == TRANSACT_CODE:
        parts = tuple(
            () if index in holes else draw(transaction(routes, user_id, stamp))
            for index in range(count)
        )
        validated = frozenset(draw(st.sets(st.integers(0, count - 1), max_size=1)))
        return LoggedSpan(code, count, b"", user_id, stamp, refused, parts, validated=validated)
    if code in CATALOG_CODES:
        alone = tuple(
            draw(catalog_span(code, user_id, stamp, hole=i in holes)) for i in range(count)
        )
        return catalog_spans(alone, refused)
    items = frame_all(
        b"" if index in holes else draw(command(routes[code])) for index in range(count)
    )
    return LoggedSpan(code, count, items, user_id, stamp, refused)


@st.composite
def catalog_span(
    draw: st.DrawFn, code: int, user_id: int, stamp: int, hole: bool = False
) -> LoggedSpan:
    """Return one command of the catalog."""
    word = draw(st.sampled_from(["", "", "", ",unresolved"]))
    numbers = [draw(st.integers(1, 3)) for _ in range(CATALOG_CODES[code])]
    item = b"" if hole else f"{'.'.join(map(str, numbers))}{word}".encode()
    commands = (None if hole else catalog_command(code, *numbers),)
    return LoggedSpan(code, 1, frame_all([item]), user_id, stamp, catalog_commands=commands)


def catalog_spans(
    parts: tuple[LoggedSpan, ...], refused: tuple[IndexedError, ...] = ()
) -> LoggedSpan:
    """Return spans of one command each as one span."""
    return replace(
        parts[0],
        count=len(parts),
        items=b"".join(part.items for part in parts),
        refused=refused,
        catalog_commands=tuple(part.catalog_commands[0] for part in parts),
    )


def decision(code: int, *numbers: int) -> LoggedSpan:
    """Return a command about a snapshot that the cluster itself sends."""
    item = ".".join(map(str, numbers)).encode()
    commands = (catalog_command(code, *numbers),)
    system = limits.SYSTEM_USER_ID
    return LoggedSpan(code, 1, frame_all([item]), system, NEW_STAMP, catalog_commands=commands)


@st.composite
def transaction(
    draw: st.DrawFn, routes: dict[int, Route], user_id: int, stamp: int
) -> tuple[LoggedSpan, ...]:
    """Return the parts of a transaction."""
    known = [*COMMAND_CODES, *CATALOG_CODES]
    codes = draw(st.lists(st.sampled_from(known), min_size=1, max_size=4))
    return tuple(
        draw(catalog_span(code, user_id, stamp))
        if code in CATALOG_CODES
        else LoggedSpan(code, 1, frame_all([draw(command(routes[code]))]), user_id, stamp)
        for code in codes
    )


@st.composite
def request(draw: st.DrawFn, routes: dict[int, Route], sent: dict[int, int]) -> LoggedRequest:
    """Return a request: mostly the next of its session, at times a duplicate or a gap."""
    session_id = draw(st.sampled_from([0, 0, 0, 1, 3, 5, *SESSION_OWNERS]))
    owner = SESSION_OWNERS.get(session_id, draw(st.sampled_from(USERS)))
    user_id = draw(st.sampled_from([owner] * 7 + [1]))
    number = 0
    if session_id:
        number = max(1, sent.get(session_id, 0) + draw(st.sampled_from([1] * 6 + [0, -1, 2])))
        sent[session_id] = max(number, sent.get(session_id, 0))
    spans = draw(st.lists(span(routes, user_id), min_size=1, max_size=3))
    acked = max(0, number - draw(st.integers(1, 4))) if session_id else 0
    return LoggedRequest(session_id, number, acked, tuple(spans))


@st.composite
def requests(
    draw: st.DrawFn, routes: dict[int, Route], sent: dict[int, int], catalog: Expected
) -> tuple[LoggedRequest, ...]:
    """Return the requests of a prepare: of clients, a cut, or a decision about one."""
    kinds = ["clients"] * 4 + [BEGIN, BEGIN, COMPLETE, COMPLETE, FAIL]
    kind = draw(st.sampled_from(kinds))
    if kind == "clients":
        return tuple(draw(st.lists(request(routes, sent), max_size=4)))
    number = catalog.generation + draw(st.sampled_from([0] * 5 + [1]))
    if kind == BEGIN:
        keep_last = draw(st.sampled_from([1, 1, 2, 0]))
        one = decision(BEGIN, number, keep_last, draw(st.integers(0, 2)))
        catalog.is_begun |= number == catalog.generation and keep_last > 0
    else:
        one = decision(int(kind), number)
        if catalog.is_begun and number == catalog.generation:
            catalog.generation, catalog.is_begun = number + 1, False
    return (LoggedRequest(0, 0, 0, (one,)),)


@dataclass
class Expected:
    """Roughly the generation that most cuts and decisions are about."""

    generation: int = 1
    is_begun: bool = False


@dataclass
class Story:
    """Everything that happens, and the order in which stages answer."""

    routes: dict[int, Route]
    prepares: list[CommittedPrepare]
    reads: list[Read]
    schedule: list[int]


@st.composite
def story(draw: st.DrawFn, shortest: int = 1, longest: int = 7) -> Story:
    """Return a story of some prepares and reads."""
    routes = {code: draw(command_route(code)) for code in COMMAND_CODES}
    routes |= {code: draw(query_route(code)) for code in QUERY_CODES}
    codes = (*CATALOG_CODES, BEGIN, COMPLETE, FAIL)
    routes |= {code: draw(catalog_route(code)) for code in codes}
    routes[1] = Route(1, Stage.SESSIONS)
    prepares, sent, catalog = [_registrations()], dict[int, int](), Expected()
    revision = len(SESSION_OWNERS) + 1
    for op in range(2, 2 + draw(st.integers(shortest, longest))):
        held = draw(requests(routes, sent, catalog))
        prepares.append(
            CommittedPrepare(op, 7, revision, 1000 * op, limits.FEATURE_LEVEL_MAX, held)
        )
        revision += sum(span.count for one in held for span in one.spans)
    reads = [draw(read(token)) for token in range(draw(st.integers(0, 4)))]
    return Story(routes, prepares, reads, draw(st.lists(st.integers(0, 63), min_size=1)))


@st.composite
def read(draw: st.DrawFn, token: int) -> Read:
    """Return a read of several spans."""
    spans = draw(
        st.lists(
            st.builds(
                lambda code, names, is_authorized: ReadSpan(
                    code,
                    len(names),
                    frame_all(name.encode() for name in names),
                    is_authorized=is_authorized,
                ),
                st.sampled_from(list(QUERY_CODES)),
                st.lists(st.sampled_from(["x", "y,fail", "z,unresolved"]), min_size=1, max_size=3),
                st.sampled_from([False, False, True]),
            ),
            max_size=3,
        )
    )
    return Read(token, tuple(spans), 1, NEW_STAMP)


def _registrations() -> CommittedPrepare:
    """Return the first prepare: it opens all sessions."""
    requests = []
    for session_id, user_id in SESSION_OWNERS.items():
        nonce = session_id.to_bytes(limits.SESSION_NONCE_BYTES, "big")
        commands = (RegisterSession(nonce),)
        one = LoggedSpan(1, 1, b"", user_id, NEW_STAMP, session_commands=commands)
        requests.append(LoggedRequest(0, 0, 0, (one,)))
    return CommittedPrepare(1, 7, 1, 1000, limits.FEATURE_LEVEL_MAX, tuple(requests))


@dataclass
class MuxCluster:
    """A mux among fake stages that answer when the schedule says so.

    Every second completed generation is released, soon or late: others may have been cut.
    """

    story: Story
    stages: dict[Stage, FakeStage]
    mux: Mux = field(init=False)
    sent: dict[Stage, deque[StageBatch]] = field(init=False)
    applied: list[Applied] = field(default_factory=list)
    answered: list[ReadAnswered] = field(default_factory=list)
    taken: dict[int, CutTaken] = field(default_factory=dict)
    adoptable: deque[int] = field(default_factory=deque)

    def __post_init__(self) -> None:
        """Begin with nothing committed."""
        self.mux = Mux(self.story.routes, FakeCodec())
        self.sent = {stage: deque() for stage in Stage}

    def run(self) -> None:
        """Play the story to its end."""
        prepares, reads = deque(self.story.prepares), deque(self.story.reads)
        # The first prepare opens the sessions, so that the model can begin with them.
        self._take(self.mux.commit(prepares.popleft()))
        turn = 0
        while True:
            busy = [stage for stage in Stage if self.sent[stage]]
            choices: list[Stage | str] = [*busy]
            if prepares and self.mux.unapplied < limits.UNAPPLIED_PREPARES_MAX:
                choices.append("commit")
            if reads:
                choices.append("read")
            if self.adoptable:
                choices.append("release")
            if not choices:
                return
            choice = choices[self.story.schedule[turn % len(self.story.schedule)] % len(choices)]
            turn += 1
            if isinstance(choice, Stage):
                batch = self.sent[choice].popleft()
                self._take(self.mux.reply(self.stages[choice].apply(batch)))
            elif choice == "commit":
                self._take(self.mux.commit(prepares.popleft()))
            elif choice == "release":
                self.mux.release(self.adoptable.popleft())
            else:
                self._take(self.mux.read(reads.popleft()))

    def _take(self, effects: list[MuxEffect]) -> None:
        """Carry effects out."""
        for effect in effects:
            match effect:
                case SendBatch(batch=batch):
                    self.sent[batch.stage].append(batch)
                case CutTaken():
                    self.taken[effect.generation] = effect
                case CatalogChanged():
                    self._adopt(effect)
                case Applied():
                    self.applied.append(effect)
                case ReadAnswered():
                    self.answered.append(effect)

    def _adopt(self, changed: CatalogChanged) -> None:
        """Note which of the completed generations will be released."""
        for snapshot in changed.snapshots:
            if snapshot.state is SnapshotState.COMPLETED and snapshot.generation % 2:
                self.adoptable.append(snapshot.generation)


def fake_stages() -> dict[Stage, FakeStage]:
    """Return fresh machines."""
    codes = frozenset(QUERY_CODES)
    return {stage: FakeStage(stage, True, query_codes=codes) for stage in SERVICES}


def _expected(tale: Story, stages: dict[Stage, FakeStage]) -> tuple[Sequential, list[RequestReply]]:
    """Return the model behind the story, and its replies after the registrations."""
    clients = {
        session_id: SequentialClient(user_id) for session_id, user_id in SESSION_OWNERS.items()
    }
    model = Sequential(tale.routes, stages, clients)
    model.history[1] = dict.fromkeys(SERVICES, (0, 0))
    return model, [reply for prepare in tale.prepares[1:] for reply in model.commit(prepare)]


@pytest.mark.parametrize("examples", [50, pytest.param(150, marks=pytest.mark.long)])
def test_mux_equals_one_command_at_a_time(examples: int) -> None:
    """Stages see the same in the same order as one by one, and give the same replies and reads."""

    @settings(max_examples=examples)
    @given(tale=story())
    def holds(tale: Story) -> None:
        model, expected = _expected(tale, fake_stages())
        cluster = MuxCluster(tale, fake_stages())
        cluster.run()
        assert [one.op for one in cluster.applied] == [prepare.op for prepare in tale.prepares]
        for stage in SERVICES:
            assert cluster.stages[stage].seen == model.stages[stage].seen, stage.name
            assert cluster.stages[stage].saved is None, f"{stage.name} has an open savepoint"
        assert [reply for one in cluster.applied[1:] for reply in one.replies] == expected
        reads = {one.token: one for one in tale.reads}
        assert sorted(answer.token for answer in cluster.answered) == sorted(reads)
        for answer in cluster.answered:
            spans = model.read(reads[answer.token], answer.op, answer.revision)
            assert list(answer.spans) == spans and answer.error is None
        assert list(cluster.mux.catalog.entities()) == list(model.catalog.entities())
        assert {s.session_id: s.last_number for s in cluster.mux.sessions.live()} == {
            session_id: client.last for session_id, client in model.clients.items()
        }

    holds()
