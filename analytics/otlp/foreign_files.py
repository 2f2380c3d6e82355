"""Reads files that are no JSON lines: each message becomes a line, as `canonical` writes it.

Runs in tasks. A file is read once from its beginning to its end, message by message. What cannot be
read is a row with its problem, and never an error.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from analytics.otlp import lines
from analytics.otlp.canonical import LeftOut, canonical
from analytics.otlp.compressed import BombError, inflated
from analytics.otlp.files import Split, open_regular, why_foreign
from analytics.otlp.flatten import NOT_JSON, NOT_OTLP
from analytics.otlp.forms import LENGTH_BYTES, MESSAGE_BYTES_MAX, VARINT_BYTES_MAX, OtlpForm, varint
from analytics.otlp.json_documents import BrokenDocument, documents
from analytics.otlp.mended_lines import rows_of_line
from analytics.otlp.protobuf_messages import MessageError, document
from viewstamp.limits import MIB

if TYPE_CHECKING:
    import pyarrow

# Reasons in `quarantine`.
TOO_LARGE: Final = "message_too_large"
CUT_MESSAGE: Final = "cut_message"

# Lines of about so many bytes go to the table together.
BATCH_BYTES: Final = 4 * MIB
MIB_MAX: Final = MESSAGE_BYTES_MAX // MIB


def read_all(splits: Iterable[Split]) -> Iterator[pyarrow.RecordBatch]:
    """Yield the lines of splits in any form (`lines.COLUMNS`), one after the other."""
    for split in splits:
        yield from lines.read(split) if split.form is OtlpForm.LINES else _read(split)


def _read(split: Split) -> Iterator[pyarrow.RecordBatch]:
    """Yield the messages of a file as lines. An unreadable part becomes a row with a problem."""
    if split.form is OtlpForm.FOREIGN:
        why = why_foreign(split.path).encode()
        yield lines.problem_of(split.path, 0, lines.WHOLE_FILE, lines.SKIPPED_FILE, why)
        return
    try:
        with open_regular(split.path) as raw:
            stream = lines.opened(raw, split)
            yield from map(lines.batch_of, _grouped(split.path, split.form, stream))
    except OSError as error:
        why = str(error).encode()
        yield lines.problem_of(split.path, 0, lines.WHOLE_FILE, lines.UNREADABLE, why)


def _grouped(source: str, form: OtlpForm, stream: BinaryIO) -> Iterator[list[lines.Row]]:
    """Yield the rows of a file's messages in groups. Raises OSError where the file is damaged."""
    group: list[lines.Row] = []
    size_bytes = 0
    for number, message in enumerate(_messages(form, stream)):
        for row in _rows((source, 0, number), message):
            group.append(row)
            size_bytes += len(row[3])
        if size_bytes >= BATCH_BYTES:
            yield group
            group, size_bytes = [], 0
    yield group


def _messages(form: OtlpForm, stream: BinaryIO) -> Iterator[Any]:
    """Yield the documents of a file; a LeftOut for one that is none."""
    if form in (OtlpForm.FIXED, OtlpForm.VARINT):
        for frame in _frames(form, stream):
            yield from [frame] if isinstance(frame, LeftOut) else _inner(frame)
        return
    whole = stream.read(MESSAGE_BYTES_MAX + 1)
    if len(whole) > MESSAGE_BYTES_MAX:
        yield LeftOut(
            TOO_LARGE,
            f"the file is one message of more than {MIB_MAX} MiB: write it as JSON lines, or with"
            " a length before each message",
        )
        return
    yield from _inner(whole)


def _inner(data: bytes) -> Iterator[Any]:
    """Yield the documents of one message: JSON or protobuf, compressed or not."""
    try:
        data = inflated(data)
    except BombError as error:
        yield LeftOut(TOO_LARGE, str(error))
        return
    except OSError as error:
        yield LeftOut(CUT_MESSAGE, f"the message cannot be decompressed: {error}")
        return
    if data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        yield from documents(data.decode(errors="replace"))
        return
    try:
        yield document(data)
    except MessageError as error:
        yield LeftOut(NOT_OTLP, str(error))


def _frames(form: OtlpForm, stream: BinaryIO) -> Iterator[bytes | LeftOut]:
    """Yield the messages of a file that has the length before each."""
    while head := stream.read(LENGTH_BYTES if form is OtlpForm.FIXED else 1):
        length = _length(form, head, stream)
        if length is None or length > MESSAGE_BYTES_MAX:
            yield LeftOut(
                CUT_MESSAGE if length is None else TOO_LARGE,
                "the length of the next message is cut, and the rest of the file is not read"
                if length is None
                else f"the next message says that it has {length} bytes, at most {MIB_MAX} MiB are"
                " read; the rest of the file is not read",
            )
            return
        data = stream.read(length)
        if len(data) < length:
            yield LeftOut(
                CUT_MESSAGE, f"the file ends {length - len(data)} bytes before its last message"
            )
            return
        yield data


def _length(form: OtlpForm, head: bytes, stream: BinaryIO) -> int | None:
    """Return the length that begins with `head`; None if it is cut."""
    if form is OtlpForm.FIXED:
        return int.from_bytes(head, "big") if len(head) == LENGTH_BYTES else None
    while head[-1] >= 0x80 and len(head) < VARINT_BYTES_MAX and (more := stream.read(1)):
        head += more
    told = varint(head)
    return None if told is None else told[0]


def _rows(place: tuple[str, int, int], message: Any) -> Iterator[lines.Row]:
    """Yield the rows of one document."""
    if isinstance(message, LeftOut):
        yield (*place, message.excerpt.encode(), message.reason)
        return
    line = canonical([message])
    if line is not None:
        yield from rows_of_line(place, line)
        return
    is_broken = isinstance(message, BrokenDocument)
    # A document may be nested as deeply as its reader allows, and `str` goes no deeper than that.
    text = message.text if isinstance(message, BrokenDocument) else reprlib.repr(message)
    excerpt = text[: lines.EXCERPT_BYTES].encode(errors="replace")
    yield (*place, excerpt, NOT_JSON if is_broken else NOT_OTLP)
