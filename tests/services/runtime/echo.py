"""The echo domain: compiled from echo.proto next to this file, as small as a domain can be.

Its state has an entity table, an index and a counter, so that a revert has all three to restore.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc_tools
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import Message
from grpc_tools import protoc

from services.runtime.domain import Call, Deferred, Domain, NormalizeCall, Normalized
from services.runtime.section import EntityKind, Projected, Section, SectionError
from viewstamp import framing
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.errors import Refusal
from viewstamp.limits import FEATURE_LEVEL_MAX, MESSAGE_BYTES_MAX, STAGE_TIMEOUT_MS
from viewstamp.machine.tables import Table, UndoLog

ROOT: Final = Path(__file__).parents[3]
PUT, REMOVE, HIDE, UNCLAIMED, ELSEWHERE, GET, PONDER = 900, 901, 902, 903, 904, 950, 951
BUSY_MS: Final = STAGE_TIMEOUT_MS + 1_000
EXPIRE: Final = 990  # the code of Put's proposals


def _compiled() -> FileDescriptor:
    """Return echo.proto in the default pool, where the files it imports already are."""
    includes = (ROOT / "protos", Path(__file__).parent, Path(grpc_tools.__file__).parent / "_proto")
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "echo.binpb"
        arguments = ["protoc", *(f"-I{path}" for path in includes), f"-o{out}", "echo.proto"]
        assert protoc.main(arguments) == 0
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.Default()
    file: FileDescriptor = pool.AddSerializedFile(files.file[0].SerializeToString())
    return file


FILE: Final = _compiled()


def message(kind: str, /, **fields: object) -> Any:
    """Return a message of echo.proto."""
    return message_factory.GetMessageClass(FILE.message_types_by_name[kind])(**fields)


def parse(kind: str, encoded: bytes) -> Any:
    """Return a decoded message of echo.proto."""
    return message_factory.GetMessageClass(FILE.message_types_by_name[kind]).FromString(encoded)


@dataclass(frozen=True, slots=True)
class Word:
    """One entity."""

    id: int
    text: str
    name: str


class EchoState:
    """Words by name, names by text, and the next id."""

    def __init__(self, undo: UndoLog) -> None:
        """Start with no words."""
        self.words: Table[str, Word] = Table(undo)
        self.by_text: Table[str, str] = Table(undo)
        self.counters: Table[str, int] = Table(undo)

    def put_word(self, word: Word) -> None:
        """Put down a word under its name."""
        self.words.put(word.name, word)
        self.by_text.put(word.text, word.name)

    def snapshot(self) -> tuple[object, ...]:
        """Return all there is, for comparison."""
        tables = (self.words, self.by_text, self.counters)
        return tuple((list(table.sorted_keys()), dict(table.rows)) for table in tables)


def put(state: EchoState, request: Any, call: Call) -> Any:
    """Change all three tables and emit, then fail if the request asks for it."""
    number = state.counters.rows.get("id", 1)
    state.counters.put("id", number + 1)
    old = state.words.rows.get(request.name)
    if old is not None and state.by_text.rows.get(old.text) == request.name:
        state.by_text.delete(old.text)
    state.put_word(Word(number, request.text, request.name))
    if request.tell:
        payload = effects_pb2.EffectPayload(user_deleted=effects_pb2.UserDeleted(user_id=number))
        call.emit((routing_pb2.STAGE_CONSUMER_GROUPS, routing_pb2.STAGE_USERS), payload)
        call.propose(EXPIRE, message("RemoveRequest", name=request.name), due=number)
    _fail(request.fault)
    return message("PutResponse", id=number, revision=call.revision, context=call.context)


def _fail(fault: str) -> None:
    if fault == "refuse":
        raise Refusal(Reason.REASON_STREAM_EXISTS, "taken", name="x")
    if fault == "defect":
        raise KeyError("a bug")
    if fault == "disk":
        raise OSError("the disk is gone")
    if fault == "computing":
        ends_s = time.monotonic() + BUSY_MS / 1_000
        while time.monotonic() < ends_s:
            pass
    if fault == "busy":
        # Nothing of Python gets its turn meanwhile, in any thread.
        ctypes.PyDLL(None).usleep(BUSY_MS * 1000)
    if fault == "deep":
        _fail(fault)
    if fault == "memory":
        raise MemoryError
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


def remove(state: EchoState, request: Any, call: Call) -> bytes:
    """Remove a word, in encoded form since the response is empty."""
    if request.name not in state.words:
        raise Refusal(Reason.REASON_STREAM_NOT_FOUND, f"no {request.name}", name=request.name)
    word = state.words.delete(request.name)
    if state.by_text.rows.get(word.text) == request.name:
        state.by_text.delete(word.text)
    return b""


def hide(state: EchoState, request: Any, call: Call) -> Any:
    """Keep the digest of a secret."""
    state.words.put("hidden", Word(0, request.digest.hex(), "hidden"))
    return message("HideResponse")


def get(state: EchoState, request: Any, call: Call) -> Any:
    """Return a word with its position, as the read knows it."""
    if request.fault == "change":
        state.words.put("trace", Word(0, "left by a read", "trace"))
    if request.fault == "large":
        return message("GetResponse", text="x" * (MESSAGE_BYTES_MAX // 2))
    _fail(request.fault)
    word = state.words.rows.get(request.name)
    if word is None:
        raise Refusal(Reason.REASON_STREAM_NOT_FOUND, f"no {request.name}", name=request.name)
    return message(
        "GetResponse", text=word.text, id=word.id, context=call.context, revision=call.revision
    )


def ponder(state: EchoState, request: Any, call: Call) -> Deferred | bytes:
    """Answer later, from the current state; a request without a name is answered at once."""
    if not request.name:
        return b""
    word, fault = state.words.rows.get(request.name), request.fault

    def compute() -> Any:
        _fail(fault)
        return message("GetResponse", text="" if word is None else word.text)

    return Deferred(compute)


def user_deleted(state: EchoState, effect: Any, call: Call) -> None:
    """Drop the words with the id of a user; user 13 brings bad luck, user 14 is talkative."""
    for name in list(state.words.sorted_keys()):
        if state.words.rows[name].id == effect.user_id:
            state.words.delete(name)
    call.propose(EXPIRE, message("RemoveRequest"), due=effect.user_id)
    if effect.user_id == 13:
        raise RuntimeError("bad luck")
    if effect.user_id == 14:
        call.emit((1,), effects_pb2.EffectPayload())


def resolve(state: EchoState, item: bytes, call: Call, gate: int) -> bytes:
    """Return gate and id; a missing word is refused, and user 66 leaves a trace."""
    request = parse("GetRequest", item)
    if call.user_id == 66:
        state.words.put("trace", Word(0, "left by a resolve", "trace"))
    if request.name not in state.words:
        raise Refusal(Reason.REASON_STREAM_NOT_FOUND, f"no {request.name}", name=request.name)
    return f"{gate}:{state.words.rows[request.name].id}".encode()


def resolve_grants(state: EchoState, item: bytes, call: Call) -> bytes:
    """Return the item in capitals."""
    return item.upper()


def normalize_hide(state: EchoState, request: Any, call: NormalizeCall) -> Callable[[], Normalized]:
    """Replace the secret by its digest, and reveal a token to its caller."""
    if not request.secret:
        raise Refusal(Reason.REASON_INVALID_PASSWORD, "no secret: give one")
    if request.secret == "bug":
        raise KeyError("a bug")
    secret, salt = request.secret, len(state.words)

    def compute() -> Normalized:
        _fail(secret)
        digest = hashlib.sha256(f"{salt}{secret}".encode()).digest()
        return Normalized(message("HideRequest", digest=digest), hide_suffix(request, call))

    return compute


def hide_suffix(request: Any, call: NormalizeCall) -> bytes:
    """Return the token, made of where the command came from."""
    encoded: bytes = message("HideResponse", token=call.origin).SerializeToString()
    return encoded


def encode_word(word: Word) -> bytes:
    """Return the canonical bytes of a word."""
    return f"{word.name}\0{word.id}\0{word.text}".encode()


def encode_counters(counters: Mapping[str, int]) -> bytes:
    """Return the canonical bytes of the counter."""
    return str(counters["id"]).encode()


def load_word(state: EchoState, canonical: bytes) -> Projected:
    """Insert a word; the name "clash" clashes."""
    name, number, text = canonical.decode().split("\0")
    if name == "clash":
        raise SectionError("this word clashes")
    word = Word(int(number), text, name)
    state.put_word(word)
    return name.encode(), encode_word(word)


def load_counters(state: EchoState, canonical: bytes) -> Projected:
    """Insert the counter."""
    state.counters.put("id", int(canonical))
    return b"", encode_counters(state.counters.rows)


def check(state: EchoState) -> Iterator[None]:
    """Refuse words with ids that the counter gives next."""
    number = state.counters.rows.get("id", 1)
    if any(word.id >= number for word in state.words.rows.values()):
        raise SectionError(f"a word has an id that is not below {number}")
    yield


SECTION: Final[Section[EchoState]] = Section(
    version=7,
    kinds=(
        EntityKind(
            1,
            table=lambda state: state.words,
            encode=encode_word,
            load=load_word,
            encode_key=lambda name, word: name.encode(),
        ),
        EntityKind(
            2,
            table=lambda state: state.counters,
            encode=encode_counters,
            load=load_counters,
            whole_table=True,
        ),
    ),
    check=check,
    projections={"words": lambda state: ((n.encode(), b"") for n in state.words.sorted_keys())},
)


def proposals(state: EchoState) -> Iterator[pb.Proposal]:
    """Yield one proposal per word."""
    for name in state.words.sorted_keys():
        yield pb.Proposal(code=EXPIRE, request=name.encode())


def silent(state: EchoState, tenure: pb.Tenure) -> Iterator[pb.Proposal]:
    """Yield one proposal per word that is shorter than the tenure is long."""
    for name in state.words.sorted_keys():
        if len(name) < tenure.elapsed_ms:
            yield pb.Proposal(code=EXPIRE, request=name.encode(), due=tenure.number)


DOMAIN: Final[Domain[EchoState]] = Domain(
    stage=routing_pb2.STAGE_STREAMS,
    files=[FILE],
    new_state=EchoState,
    commands={"Put": put, "Remove": remove, "Hide": hide},
    queries={"Get": get, "Ponder": ponder},
    effects={"user_deleted": user_deleted},
    section=SECTION,
    proposals=proposals,
    silent=silent,
    resolve=resolve,
    resolve_grants=resolve_grants,
    normalizers={"Hide": normalize_hide},
    suffixes={"Hide": hide_suffix},
)


def frames(*requests: Message | bytes) -> bytes:
    """Return requests, decoded or encoded, as a framed blob."""
    return framing.frame_all(r if isinstance(r, bytes) else r.SerializeToString() for r in requests)


def put_request(name: str, text: str = "", **fields: object) -> Any:
    """Return a PutRequest; the text is the name if not given."""
    return message("PutRequest", name=name, text=text or name, **fields)


def command(code: int, *requests: Message | bytes, revision: int = 1, **fields: Any) -> pb.Item:
    """Return a command item of these requests."""
    fields.setdefault("count", len(requests))
    item = pb.CommandItem(
        code=code, first_revision=revision, items=frames(*requests), user_id=5, **fields
    )
    return pb.Item(command=item)


def query(code: int, *requests: Message | bytes, query_id: int = 1, **fields: Any) -> pb.Item:
    """Return a query item of these requests."""
    fields.setdefault("count", len(requests))
    return pb.Item(
        query=pb.QueryItem(query_id=query_id, code=code, items=frames(*requests), **fields)
    )


def effect(user_id: int, revision: int = 1) -> pb.Item:
    """Return a UserDeleted effect item."""
    payload = effects_pb2.EffectPayload(user_deleted=effects_pb2.UserDeleted(user_id=user_id))
    return pb.Item(effect=pb.EffectItem(revision=revision, payload=payload.SerializeToString()))


SAVEPOINT: Final = pb.Item(savepoint=pb.SavepointItem())
KEEP: Final = pb.Item(keep=pb.KeepItem())
REVERT: Final = pb.Item(revert=pb.RevertItem())
PROPOSALS: Final = pb.Item(proposals=pb.ProposalsItem())


def batch(sequence: int, *items: pb.Item) -> pb.Batch:
    """Return a batch at feature level 1."""
    return pb.Batch(sequence=sequence, op=sequence, feature_level=FEATURE_LEVEL_MAX, items=items)
