"""Rotated files, and the queue before them."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, cast

import pytest
import zstandard

from analytics.otlp.files import NAME
from tests.viewstamp.telemetry.spans_for_tests import TraceSpan, made_span, read_spans
from viewstamp.telemetry.files import (
    CURRENT_NAME,
    ROTATED_GLOB,
    DirectoryTakenError,
    TraceFiles,
    compress,
)
from viewstamp.telemetry.spans import Attributes, Notes
from viewstamp.telemetry.spool import SPANS_PER_GROUP_MIN, Spool

# A signal this often interrupts many puts, so each line of `put` is interrupted by some.
SIGNAL_S = 0.001
PUTS = 100_000


def resource() -> Attributes:
    """Return the owners of the spans."""
    return {"service.name": "viewstamp-echo"}


class HeldSink:
    """A sink that waits until the test releases it."""

    def __init__(self) -> None:
        """Hold all spans."""
        self.entered = threading.Event()
        self.let_go = threading.Event()
        self.spans: list[TraceSpan] = []

    def write(self, notes: Sequence[Notes]) -> None:
        """Take spans, once released."""
        self.entered.set()
        self.let_go.wait()
        assert all(isinstance(one, TraceSpan) for one in notes)
        self.spans += cast(Sequence[TraceSpan], notes)

    def close(self) -> None:
        """Nothing is held."""


def test_files_are_rotated_and_removed(tmp_path: Path) -> None:
    """A file never grows past its limit, a rotated one is never touched again, the oldest go."""
    files = TraceFiles(tmp_path, resource, file_bytes_max=1_000, rotated_files_max=3)
    seen: dict[str, bytes] = {}
    for number in range(30):
        files.write([made_span(f"span {number}")])
        for path in tmp_path.glob(ROTATED_GLOB):
            assert seen.setdefault(path.name, path.read_bytes()) == path.read_bytes()
    files.close()
    kept = sorted(path.name for path in tmp_path.glob(ROTATED_GLOB))
    assert len(kept) == 3 and len(seen) > 3
    assert kept == sorted(seen)[-3:]
    assert all(path.stat().st_size <= 1_000 for path in tmp_path.glob("traces*.jsonl"))
    names = [span.name for span in read_spans(tmp_path)]
    assert sorted(names, key=lambda name: int(name.split()[1]))[-1] == "span 29"


def test_rotated_files_are_compressed_whole(tmp_path: Path) -> None:
    """On request a rotated file is one .zst, readable by its owner alone; the oldest are
    removed."""
    files = TraceFiles(
        tmp_path, resource, file_bytes_max=1_000, rotated_files_max=3, compresses=True
    )
    for number in range(30):
        files.write([made_span(f"span {number}")])
    files.close()
    names = sorted(path.name for path in tmp_path.glob("traces-*"))
    assert len(names) == 3 and all(name.endswith(".jsonl.zst") for name in names)
    text = b"".join(
        zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()
        for path in (tmp_path / name for name in names)
    )
    lines = (text + (tmp_path / CURRENT_NAME).read_bytes()).splitlines()
    found = [
        int(json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["name"][5:])
        for line in lines
    ]
    assert found == [*range(found[0], 30)] and len(found) > 4
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("traces*")} == {0o600}


def test_half_a_compressed_file_is_no_trace_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the disk is full during compression, the plain file stays, and no reader takes the
    rest."""
    path = tmp_path / "traces-2026-01-31T12-00-00.000000.jsonl"
    path.write_bytes(b"{}\n" * 100)

    class Broken:
        def copy_stream(self, _: object, packed: BinaryIO) -> None:
            packed.write(b"half")
            raise OSError("planted: no room")

    monkeypatch.setattr(zstandard, "ZstdCompressor", lambda *_, **__: Broken())
    with pytest.raises(OSError, match="planted"):
        compress(path)
    left = {each.name for each in tmp_path.iterdir()}
    assert path.read_bytes() == b"{}\n" * 100
    assert not any(NAME.search(name) for name in left - {path.name})


def test_nobody_else_may_read(tmp_path: Path) -> None:
    """Directory and file are the owner's alone: names of users' streams are in there."""
    TraceFiles(tmp_path / "own", resource).close()
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "own" / CURRENT_NAME).stat().st_mode & 0o777 == 0o600


def test_cut_line_stays_alone(tmp_path: Path) -> None:
    """After a kill in the middle of a line the next process begins a line of its own."""
    (tmp_path / CURRENT_NAME).write_bytes(b'{"resourceSpans":[{"res')
    files = TraceFiles(tmp_path, resource)
    files.write([made_span("whole")])
    files.close()
    lines = (tmp_path / CURRENT_NAME).read_text().splitlines()
    assert lines[0] == '{"resourceSpans":[{"res' and '"whole"' in lines[1] and len(lines) == 2


def test_directory_has_one_writer(tmp_path: Path) -> None:
    """A second process is refused with what to do, and may have the directory after the first."""
    first = TraceFiles(tmp_path, resource)
    with pytest.raises(DirectoryTakenError, match="a directory of its own"):
        TraceFiles(tmp_path, resource)
    first.close()
    TraceFiles(tmp_path, resource).close()


def test_partly_written_line_is_told_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a written line is an error, and the next line is whole again."""
    files = TraceFiles(tmp_path, resource)
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[: len(data) // 2]))
    with pytest.raises(OSError, match="could be written"):
        files.write([made_span("half")])
    monkeypatch.setattr(os, "write", real)
    files.write([made_span("whole")])
    files.close()
    last = (tmp_path / CURRENT_NAME).read_text().splitlines()[-1]
    assert '"whole"' in last and last.startswith('{"resourceSpans"')


def test_full_queue_drops_and_counts() -> None:
    """Spans beyond the queue are dropped and counted at once; those in it arrive in order."""
    sink = HeldSink()
    spool = Spool("held", sink, capacity=5)
    spool.put(made_span("first"))
    sink.entered.wait()  # the first is out of the queue
    for number in range(8):
        spool.put(made_span(f"span {number}"))
    assert spool.dropped == 3
    sink.let_go.set()
    spool.close()
    assert [span.name for span in sink.spans] == ["first", *(f"span {n}" for n in range(5))]
    assert spool.written == 6


class BrokenSink(HeldSink):
    """A disk that is full."""

    def write(self, notes: Sequence[Notes]) -> None:
        """Refuse."""
        raise OSError("planted: no room")


def test_failing_sink_drops_and_tells_once(caplog: pytest.LogCaptureFixture) -> None:
    """A span that cannot be written is counted as dropped, and the log says why, once."""
    spool = Spool("broken", BrokenSink())
    for _ in range(200):
        spool.put(made_span())
    spool.close()
    assert (spool.dropped, spool.written) == (200, 0)
    assert [record.getMessage() for record in caplog.records] == [
        "broken: spans are dropped: planted: no room"
    ]


class DefectiveSink(HeldSink):
    """A sink that fails once unexpectedly, and works from then on."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go.set()
        self._is_sound = False

    def write(self, notes: Sequence[Notes]) -> None:
        """Raise an error that is not an OSError, the first time."""
        if not self._is_sound:
            self._is_sound = True
            raise KeyError("planted")
        super().write(notes)


def test_a_defect_of_a_sink_costs_one_group(caplog: pytest.LogCaptureFixture) -> None:
    """The thread survives any error of a sink, counts the loss, and logs the place."""
    sink = DefectiveSink()
    spool = Spool("defective", sink)
    for _ in range(3 * SPANS_PER_GROUP_MIN):
        spool.put(made_span())
    spool.close()
    assert (spool.dropped, spool.written) == (SPANS_PER_GROUP_MIN, 2 * SPANS_PER_GROUP_MIN)
    (record,) = caplog.records
    assert record.exc_info is not None and record.exc_info[0] is KeyError


def test_a_handler_of_a_signal_may_end_a_span() -> None:
    """A signal that interrupts `put` may put a span of its own, and waits for nobody."""
    sink = HeldSink()
    spool = Spool("reentrant", sink)
    span = made_span()
    handled = 0

    def handle(*_: object) -> None:
        nonlocal handled
        handled += 1
        spool.put(span)

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, SIGNAL_S, SIGNAL_S)
    try:
        for _ in range(PUTS):
            spool.put(span)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    sink.let_go.set()
    spool.close()
    assert handled > 0
    assert spool.dropped + spool.written == PUTS + handled
