"""Log lines that callers can cause: bounded, and counted where they are left out."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path

from viewstamp.cluster.process import rotate_log
from viewstamp.telemetry import logs
from viewstamp.telemetry.logs import JsonFormatter, RepeatFilter


def test_a_flood_of_one_message_is_bounded() -> None:
    """Other lines are still written, and the next written one says how many were dropped."""
    now_s = 100.0
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter("test"))
    handler.addFilter(RepeatFilter(lambda: now_s))
    logger = logging.Logger("flooded")
    logger.addHandler(handler)
    for number in range(10_000):
        logger.error("a caller sent %d", number, extra={"fields": {"number": number}})
    logger.warning("something else")
    now_s += 10
    logger.error("a caller sent %d", 10_000)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert len(lines) == logs.LINES_AT_ONCE + 2
    assert lines[-2]["message"] == "something else"
    assert lines[-1]["fields"] == {"left_out": 10_000 - logs.LINES_AT_ONCE}


def test_messages_of_any_number_take_bounded_memory() -> None:
    """Messages that vary share one count once there are too many of them."""
    repeats = RepeatFilter(lambda: 100.0)
    written = 0
    for number in range(3 * logs.MESSAGES_COUNTED_MAX):
        record = logging.makeLogRecord({"name": "x", "levelno": 40, "msg": f"message {number}"})
        written += repeats.filter(record)
    assert len(repeats.counts) <= logs.MESSAGES_COUNTED_MAX + 1
    assert written == logs.MESSAGES_COUNTED_MAX + logs.LINES_AT_ONCE


def test_a_log_file_begins_anew(tmp_path: Path) -> None:
    """Beyond its limit the file is emptied for its writers, and kept once beside itself."""
    path = tmp_path / "streams.log"
    with path.open("ab", buffering=0) as log:
        log.write(b"first\n" * 10)
        assert not rotate_log(path, 60)
        log.write(b"x\n")
        assert rotate_log(path, 60)
        log.write(b"second\n")
    assert path.read_bytes() == b"second\n"
    assert (tmp_path / "streams.log.1").read_bytes() == b"first\n" * 10 + b"x\n"
