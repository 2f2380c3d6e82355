"""Data-driven transcripts of the mux: events and the expected trace of each.

A file is comments (`#`), and blocks: an event line, its arguments on the lines below, `----`, and
the expected trace up to an empty line. REWRITE_TRANSCRIPTS=1 writes the trace that was seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from coordinator.mux.catalog_types import (
    CatalogCounters,
    ClusterMembers,
    Description,
    FeatureLevel,
    Restored,
    Snapshot,
)
from coordinator.mux.entities import CatalogValue, Minimum, Session, SessionsValue, WindowRow
from coordinator.mux.mux import Mux
from coordinator.mux.types import (
    BEGIN_SNAPSHOT_CODE,
    SERVICE_STAGES,
    TRANSACT_CODE,
    Applied,
    CatalogChanged,
    CatalogCommand,
    CommandItem,
    CommittedPrepare,
    CutItem,
    CutTaken,
    EffectItem,
    EndSession,
    ExpireSession,
    IndexedError,
    Item,
    LoggedRequest,
    LoggedSpan,
    MuxEffect,
    QueryItem,
    Read,
    ReadAnswered,
    ReadSpan,
    RegisterSession,
    RequestReply,
    ResolveItem,
    Route,
    SendBatch,
    SessionCommand,
    SpanReply,
    Stage,
    StageBatch,
)
from testkit.composite.chains import catalog_command, entities_of, section_of
from testkit.frozen import changes_of
from tests.coordinator.mux.fakes import FakeCodec, FakeStage, holes
from viewstamp import limits
from viewstamp.framing import frame_all

VIEW = 3
_DECODERS: dict[str, Callable[[int, bytes], SessionsValue | CatalogValue]] = {
    "sessions": FakeCodec().decode_sessions_entity,
    "catalog": FakeCodec().decode_catalog_entity,
}
NAMES = {
    "register": 1,
    "end": 2,
    "expire": 3,
    "transact": TRANSACT_CODE,
    "create_user": 100,
    "rename_user": 101,
    "delete_user": 102,
    "change_password": 103,
    "create_stream": 200,
    "delete_stream": 202,
    "join": 302,
    "create_snapshot": 401,
    "delete_snapshot": 402,
    "prune_snapshots": 403,
    "set_retention": 404,
    "begin_snapshot": BEGIN_SNAPSHOT_CODE,
    "complete_snapshot": 406,
    "fail_snapshot": 407,
    "unclaimed": 999,
    "digest": 0,
    "get_user": 150,
    "get_stream": 250,
    "get_group": 350,
    "status": 450,
}
CODES = {code: name for name, code in NAMES.items()}
ROUTES = {
    route.code: route
    for route in (
        Route(1, Stage.SESSIONS),
        Route(2, Stage.SESSIONS),
        Route(3, Stage.SESSIONS, internal=True),
        Route(100, Stage.USERS, sets_grants=True),
        Route(101, Stage.USERS),
        Route(102, Stage.USERS, emits_backward=frozenset({Stage.SESSIONS})),
        Route(103, Stage.USERS, emits_backward=frozenset({Stage.SESSIONS})),
        Route(200, Stage.STREAMS),
        Route(202, Stage.STREAMS, emits_backward=frozenset({Stage.USERS})),
        Route(302, Stage.CONSUMER_GROUPS, Stage.STREAMS, gate=3),
        *(Route(code, Stage.CATALOG, Stage.STREAMS, gate=2) for code in (401, 402, 403, 404)),
        *(Route(code, Stage.CATALOG, internal=True) for code in (405, 406, 407)),
        Route(150, Stage.USERS, is_query=True),
        Route(250, Stage.STREAMS, is_query=True),
        Route(350, Stage.CONSUMER_GROUPS, Stage.STREAMS, gate=3, is_query=True),
        Route(450, Stage.CATALOG, Stage.STREAMS, gate=1, is_query=True),
    )
}
EMITS: dict[int, tuple[tuple[Stage, ...], str]] = {
    100: ((Stage.STREAMS,), "grants:{name}"),
    102: ((Stage.SESSIONS, Stage.STREAMS, Stage.CONSUMER_GROUPS), "user_ended:{name}"),
    103: ((Stage.SESSIONS, Stage.STREAMS), "credentials:{name}:{revision}"),
    202: ((Stage.USERS, Stage.CONSUMER_GROUPS), "stream_deleted:{name}"),
}


@dataclass
class MuxBlock:
    """One event of a transcript."""

    comments: list[str]
    event: list[str]
    expected: list[str]

    def text(self, trace: list[str]) -> str:
        """Return the block as it stands in a file."""
        return "\n".join([*self.comments, *self.event, "----", *trace]) + "\n"


def parse_blocks(text: str) -> list[MuxBlock]:
    """Return the blocks of a file."""
    blocks = []
    comments: list[str] = []
    lines = deque(text.splitlines())
    while lines:
        line = lines.popleft()
        if not line or line.startswith("#"):
            comments.append(line)
            continue
        event = [line]
        while lines and lines[0] != "----":
            event.append(lines.popleft())
        assert lines, f"event {line!r} has no ---- below it"
        lines.popleft()
        expected = []
        while lines and lines[0]:
            expected.append(lines.popleft())
        blocks.append(MuxBlock(comments, event, expected))
        comments = []
    return blocks


@dataclass
class MuxRunner:
    """A mux among fake stages."""

    stages: dict[Stage, FakeStage] = field(
        default_factory=lambda: {stage: FakeStage(stage, emits=EMITS) for stage in Stage}
    )
    mux: Mux = field(default_factory=lambda: Mux(ROUTES, FakeCodec()))
    sent: dict[Stage, deque[StageBatch]] = field(
        default_factory=lambda: {stage: deque() for stage in Stage}
    )
    announced: dict[int, QueryItem] = field(default_factory=dict)
    taken: dict[int, CutTaken] = field(default_factory=dict)

    def run(self, event: list[str]) -> list[str]:
        """Carry out an event; return the trace."""
        name, *words = event[0].split()
        handlers: dict[str, Callable[[list[str], list[str]], list[str]]] = {
            "commit": self._commit,
            "reply": self._reply,
            "reply_services": self._reply_services,
            "reply_services_but": self._reply_services,
            "read": self._read,
            "poke": lambda words, lines: self._trace(self.mux.poke_proposals()),
            "fail_reads": self._fail_reads,
            "fail_read": lambda words, lines: self._trace(
                self.mux.fail_read(int(words[0]), b"READ_DEADLINE")
            ),
            "deferred": self._deferred,
            "lookup": self._lookup,
            "sessions": self._sessions,
            "catalog": self._catalog,
            "changes": self._changes,
            "release": self._release,
            "restart": self._restart,
        }
        return handlers[name](words, event[1:]) or ["(nothing)"]

    def _commit(self, words: list[str], lines: list[str]) -> list[str]:
        """Commit a prepare: lines of requests, indented lines of spans."""
        requests: list[LoggedRequest] = []
        for line in lines:
            if line.startswith(" "):
                requests[-1] = _with_span(requests[-1], line.split())
            else:
                requests.append(_request(line.split()))
        op, first = self.mux.op + 1, self.mux.revision + 1
        stripped = tuple(_strip(request) for request in requests)
        return self._trace(
            self.mux.commit(
                CommittedPrepare(op, VIEW, first, 1000 * op, limits.FEATURE_LEVEL_MAX, stripped)
            )
        )

    def _reply(self, words: list[str], lines: list[str]) -> list[str]:
        """Let a stage answer its oldest batch, or `all` its current ones."""
        stage = _stage(words[0])
        trace = []
        for _ in range(len(self.sent[stage]) if words[1:] == ["all"] else 1):
            batch = self.sent[stage].popleft()
            self.announced |= {i.query_id: i for i in batch.items if isinstance(i, QueryItem)}
            trace += self._trace(self.mux.reply(self.stages[stage].apply(batch)))
        return trace

    def _reply_services(self, words: list[str], lines: list[str]) -> list[str]:
        """Let every service but those named answer its oldest batch."""
        names = [stage.name.lower() for stage in SERVICE_STAGES]
        answering = [name for name in names if name not in words]
        return [line for name in answering for line in self._reply([name], [])]

    def _read(self, words: list[str], lines: list[str]) -> list[str]:
        """Read: each line is a read, its token and `method:name` words."""
        reads = [_read(line.split()) for line in lines]
        return self._trace(self.mux.read(*reads))

    def _fail_reads(self, words: list[str], lines: list[str]) -> list[str]:
        """Let the process of a stage die: its unlogged batches die with it."""
        stage = _stage(words[0])
        self.sent[stage] = deque(batch for batch in self.sent[stage] if batch.sequence)
        return self._trace(self.mux.fail_reads(stage, b"DOMAIN_RESTARTING"))

    def _deferred(self, words: list[str], lines: list[str]) -> list[str]:
        """Let a stage answer the query whose answer it had deferred."""
        item = self.announced[int(words[1])]
        outcome = self.stages[_stage(words[0])].query_outcome(item, is_now=True)
        return self._trace(self.mux.deferred(outcome))

    def _lookup(self, words: list[str], lines: list[str]) -> list[str]:
        """Ask admission about a session's request number (and acked)."""
        return [str(self.mux.admission.lookup(*map(int, words)))]

    def _sessions(self, words: list[str], lines: list[str]) -> list[str]:
        """Show the live sessions and the replies kept for them."""
        trace = []
        for session in self.mux.sessions.live():
            window = self.mux.replies.window(session.session_id)
            kept = sorted(window.replies) if window else []
            acked = window.acked if window else 0
            trace.append(
                f"session {session.session_id} of user {session.user_id}: "
                f"last {session.last_number}, acked {acked}, kept {kept}"
            )
        return trace

    def _catalog(self, words: list[str], lines: list[str]) -> list[str]:
        """Show the snapshots, newest first."""
        return [_snapshot(snapshot) for snapshot in self.mux.catalog.list_after(0, 100)]

    def _changes(self, words: list[str], lines: list[str]) -> list[str]:
        """Show the entities that a generation froze, as they are now: `changes GENERATION`."""
        taken = self.taken[int(words[0])]
        trace = []
        for name, section in (("sessions", taken.sessions), ("catalog", taken.catalog)):
            trace.append(f"{name} since {section.base_generation}")
            decode = _DECODERS[name]
            for kind, _, old, new in changes_of(section):
                was = "none" if old is None else _entity(decode(kind, old))
                now = "none" if new is None else _entity(decode(kind, new))
                trace.append(f"  {was} -> {now}")
        return trace

    def _release(self, words: list[str], lines: list[str]) -> list[str]:
        """Adopt a generation."""
        self.mux.release(int(words[0]))
        return []

    def _restart(self, words: list[str], lines: list[str]) -> list[str]:
        """Begin anew from the sum of a generation's chain: `restart GENERATION`."""
        taken = self.taken[int(words[0])]
        sections = [section_of(self.taken, taken.generation, name) for name in _DECODERS]
        place = (taken.op, taken.revision, taken.feature_level, taken.generation)
        sessions, catalog = map(entities_of, sections)
        self.mux = Mux(ROUTES, FakeCodec(), Restored(*place, sessions, catalog))
        for queue in self.sent.values():
            queue.clear()
        return []

    def _trace(self, effects: list[MuxEffect]) -> list[str]:
        """Return effects as lines, and note what was sent."""
        lines = []
        for effect in effects:
            match effect:
                case SendBatch(batch=batch):
                    self.sent[batch.stage].append(batch)
                    number = f"#{batch.sequence}" if batch.sequence else "reads"
                    lines.append(f"{batch.stage.name.lower()} <- {number} op {batch.op}")
                    lines += [f"  {_item(item)}" for item in batch.items]
                case CutTaken():
                    self.taken[effect.generation] = effect
                    lines.append(f"cut {effect.generation} at op {effect.op} r{effect.revision}")
                case CatalogChanged():
                    lines += [f"catalog: {_snapshot(changed)}" for changed in effect.snapshots]
                    lines += [f"catalog: {generation} deleted" for generation in effect.deleted]
                case Applied():
                    ended = f" ended {list(effect.ended_sessions)}" if effect.ended_sessions else ""
                    lines.append(f"applied op {effect.op} r{effect.last_revision}{ended}")
                    for reply in effect.replies:
                        head = f"s{reply.session_id}#{reply.number} r{reply.first_revision}"
                        lines.append(f"  {head}: {_answer(reply.spans, reply.error)}")
                case ReadAnswered():
                    head = f"read {effect.token} at r{effect.revision}"
                    lines.append(f"{head}: {_answer(effect.spans, effect.error)}")
        return lines


def _stage(word: str) -> Stage:
    """Return the stage of a lower-case name."""
    return Stage[word.upper()]


def _answer(spans: tuple[SpanReply, ...], error: bytes | None) -> str:
    """Return an answer as words."""
    if error is not None:
        return error.decode()
    return " | ".join(map(_span_reply, spans)) or "()"


def _span_reply(span: SpanReply) -> str:
    """Return one span's results as words, with errors in the holes."""
    if span.state_digest:
        return f"digest {span.state_digest.decode()}"
    words = holes(span.results)
    for error in span.errors:
        assert words[error.index] == "-", f"index {error.index} has a result and an error"
        words[error.index] = error.error.decode()
    return " ".join(words)


def _item(item: Item) -> str:
    """Return an item of a batch as words."""
    match item:
        case CommandItem() | ResolveItem() | QueryItem():
            kind = type(item).__name__.removesuffix("Item").lower()
            where = (
                f"?{item.query_id}" if isinstance(item, QueryItem) else f"r{item.first_revision}"
            )
            line = f"{kind} {CODES[item.code]} {where}: {' '.join(holes(item.items))}"
            contexts = "" if isinstance(item, ResolveItem) else " ".join(holes(item.contexts))
            line += f" with {contexts}" if contexts else ""
            return line + (f" without {list(item.refused)}" if item.refused else "")
        case CutItem():
            return f"cut {item.generation}"
        case EffectItem():
            return f"effect r{item.revision}: {item.payload.decode()}"
        case _:
            return type(item).__name__.removesuffix("Item").lower()


def _request(words: list[str]) -> LoggedRequest:
    """Return a request without spans: `request [session=S number=N acked=A user=U stamp=C]`."""
    values = dict(word.split("=") for word in words[1:])
    session, number = int(values.get("session", 0)), int(values.get("number", 0))
    stub = LoggedSpan(0, 0, b"", int(values.get("user", 1)), int(values.get("stamp", 1_000)))
    return LoggedRequest(session, number, int(values.get("acked", 0)), (stub,))


def _strip(request: LoggedRequest) -> LoggedRequest:
    """Return the request without the stub that carried its principal."""
    return LoggedRequest(request.session_id, request.number, request.acked, request.spans[1:])


def _with_span(request: LoggedRequest, words: list[str]) -> LoggedRequest:
    """Return the request with one more span: `method name...`; `!name` is refused already."""
    stub = request.spans[0]
    span = _span(words[0], words[1:], stub.user_id, stub.credential_revision)
    spans = (*request.spans, span)
    return LoggedRequest(request.session_id, request.number, request.acked, spans)


def _span(method: str, names: list[str], user_id: int, stamp: int) -> LoggedSpan:
    """Return a span."""
    code = NAMES[method]
    refused = tuple(
        IndexedError(index, b"NORMALIZE") for index, name in enumerate(names) if name[0] == "!"
    )
    items = frame_all(b"" if name[0] == "!" else name.encode() for name in names)
    count = len(names)
    if code == TRANSACT_CODE:
        # A transaction is `method:name+method:name`.
        parts = tuple(
            tuple(
                _span(*_method_and_names(part), user_id, stamp)
                for part in name.split("+")
                if ":" in part
            )
            for name in names
        )
        return LoggedSpan(code, count, items, user_id, stamp, refused, parts)
    commands = tuple(_session_command(code, name) for name in names) if code <= 3 else ()
    changes = tuple(_catalog_command(code, name) for name in names) if 400 < code < 450 else ()
    return LoggedSpan(code, count, items, user_id, stamp, refused, (), commands, changes)


def _method_and_names(word: str) -> tuple[str, list[str]]:
    """Split `method:name`."""
    method, _, name = word.partition(":")
    return method, [name]


def _session_command(code: int, name: str) -> SessionCommand | None:
    """Return the decoded sessions command of a word."""
    if name[0] == "!":
        return None
    if code == 1:
        return RegisterSession(name.encode().ljust(limits.SESSION_NONCE_BYTES, b"."))
    if code == 2:
        return EndSession()
    session_id, _, last = name.partition("#")
    return ExpireSession(int(session_id), int(last))


def _catalog_command(code: int, name: str) -> CatalogCommand | None:
    """Return the decoded catalog command of a word, whose numbers are joined by dots."""
    if name[0] == "!":
        return None
    numbers = [int(number) for number in name.split(",", maxsplit=1)[0].split(".")]
    return catalog_command(code, *numbers)


def _snapshot(snapshot: Snapshot) -> str:
    """Return a snapshot as words."""
    words = f"{snapshot.generation} {snapshot.state.name} {snapshot.retention.name}"
    cut = f" cut at op {snapshot.cut_op} r{snapshot.cut_revision}" if snapshot.is_cut else ""
    return words + cut + (f" because {snapshot.failure}" if snapshot.failure else "")


def _entity(value: SessionsValue | CatalogValue) -> str:
    """Return an entity as words."""
    match value:
        case Session():
            return f"session {value.session_id} last {value.last_number}"
        case Minimum():
            return f"minimum {value.minimum} of user {value.user_id}"
        case WindowRow():
            return f"window {value.session_id} acked {value.acked} of {value.last_applied}"
        case RequestReply():
            return f"reply {value.number} of {value.session_id}"
        case Snapshot():
            return _snapshot(value)
        case CatalogCounters():
            return f"last generation {value.last_generation}"
        case FeatureLevel():
            return f"feature level {value.level}"
        case Description():
            return f"description {value.text!r} of revision {value.modified_revision}"
        case ClusterMembers():
            voters = [member.replica_id for member in value.voters]
            return f"members {voters} since op {value.began_op}"


def _read(words: list[str]) -> Read:
    """Return a read: `token method:name+name ...`; `digest:streams` asks for a state digest.

    `!method` is authorized, so no stage resolves it.
    """
    spans = []
    for word in words[1:]:
        method, _, names = word.removeprefix("!").partition(":")
        is_authorized = word.startswith("!")
        if method == "digest":
            spans.append(ReadSpan(0, 1, b"", _stage(names)))
        else:
            items = [name.encode() for name in names.split("+")]
            blob = frame_all(items)
            spans.append(ReadSpan(NAMES[method], len(items), blob, None, is_authorized))
    return Read(int(words[0]), tuple(spans), user_id=1, credential_revision=1_000)
