"""Odd lines are written as the specification has it, before `flatten` sees them. Runs in tasks.

Usual lines pass untouched. An odd line goes through `canonical` once; what is still odd then, such
as an array as a value, is left to `flatten`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from analytics.otlp import columnar, lines
from analytics.otlp.canonical import CanonicalLine, canonical
from analytics.otlp.forms import MESSAGE_BYTES_MAX
from analytics.otlp.json_documents import documents

_NEWLINE: Final = b"\n"


def rows(
    schema: pa.Schema, late_before_us: int | None, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Turn batches of `lines.COLUMNS` into rows as `columnar.rows` does, odd lines mended."""
    for batch in columnar.rows(schema, late_before_us, batches):
        if columnar.is_odd(batch):
            yield from columnar.rows(schema, late_before_us, [_mended(columnar.unpacked(batch))])
        else:
            yield batch


def _mended(odd: pa.RecordBatch) -> pa.RecordBatch:
    """Return odd lines with those mended that can be, and a row for each part left out."""
    made: list[lines.Row] = []
    for source, start, line, text, problem in lines.rows_of(odd):
        mended = _line(text) if problem is None else None
        if mended is None:
            made.append((source, start, line, text, problem))
        else:
            made += rows_of_line((source, start, line), mended)
    return lines.batch_of(made)


def _line(text: bytes) -> CanonicalLine | None:
    """Return a line as the specification writes it; None if nothing in it is OTLP, or too much."""
    if len(text) > MESSAGE_BYTES_MAX:
        return None
    try:
        return canonical(documents(text.decode()))
    except UnicodeDecodeError:
        return None


def rows_of_line(place: tuple[str, int, int], line: CanonicalLine) -> Iterator[lines.Row]:
    """Yield the row of a line, and one for each part that was left out of it."""
    yield (*place, line.text + _NEWLINE, None)
    for part in line.left_out:
        yield (*place, part.excerpt.encode(errors="replace"), part.reason)
