"""The streams service with a made-up RPC of each kind: `python -m tests.processes.made_up`.

Only the service knows these RPCs: the coordinator that serves them is the unchanged one.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import grpc_tools
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FileDescriptor
from grpc_tools import protoc

from services.runtime.domain import Call
from services.runtime.process import run
from services.runtime.section import EntityKind
from services.streams.domain import DOMAIN
from services.streams.model import StreamsState
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.machine.tables import Table, UndoLog

PROTO: Final = Path(__file__).with_suffix(".proto")
PROTOS: Final = Path(__file__).parents[2] / "protos"
NOTE_KIND: Final = 99


def _compiled() -> FileDescriptor:
    """Add made_up.proto to the default pool, which has the files it imports, and return it."""
    includes = (PROTOS, PROTO.parent, Path(grpc_tools.__file__).parent / "_proto")
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "made_up.binpb"
        arguments = ["protoc", *(f"-I{path}" for path in includes), f"-o{out}", PROTO.name]
        assert protoc.main(arguments) == 0
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    file: FileDescriptor = descriptor_pool.Default().AddSerializedFile(
        files.file[0].SerializeToString()
    )
    return file


FILE: Final = _compiled()


def message(kind: str, **fields: object) -> Any:
    """Return a message of made_up.proto."""
    return message_factory.GetMessageClass(FILE.message_types_by_name[kind])(**fields)


class NotedState(StreamsState):
    """The streams state and one note beside it."""

    def __init__(self, undo: UndoLog) -> None:
        """Begin without a note."""
        super().__init__(undo)
        self.notes: Table[int, str] = Table(undo)


def put_note(state: Any, request: Any, call: Call) -> Any:
    """Replace the note."""
    if not request.text:
        raise Refusal.of(Reason.REASON_INVALID_OPTION, "note_empty")
    before = state.notes.rows.get(0, "")
    if request.text == "defect":
        raise AssertionError("planted: what a defect of the code would look like")
    state.notes.put(0, request.text)
    return message("PutNoteResponse", before=before)


def get_note(state: Any, request: Any, call: Call) -> Any:
    """Read the note."""
    return message("GetNoteResponse", text=state.notes.rows.get(0, ""))


def notes_of(state: Any) -> Table[int, str]:
    """Return the table of the note."""
    notes: Table[int, str] = state.notes
    return notes


def load_note(state: Any, canonical: bytes) -> tuple[bytes, bytes]:
    """Insert the note."""
    text = canonical.decode()
    state.notes.put(0, text)
    return b"", text.encode()


NOTE: Final[EntityKind[StreamsState]] = EntityKind(
    NOTE_KIND,
    table=notes_of,
    encode=lambda rows: rows[0].encode(),
    load=load_note,
    whole_table=True,
)
NOTED: Final = replace(
    DOMAIN,
    files=(*DOMAIN.files, FILE),
    new_state=NotedState,
    commands={**DOMAIN.commands, "PutNote": put_note},
    queries={**DOMAIN.queries, "GetNote": get_note},
    section=replace(DOMAIN.section, kinds=(*DOMAIN.section.kinds, NOTE)),
)

if __name__ == "__main__":
    sys.exit(run("streams", lambda options: NOTED))
