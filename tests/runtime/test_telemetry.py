"""Logs as JSON lines."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from viewstamp.telemetry import configure_logging, fields


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where logs go in this test; the former handlers come back after it."""
    handlers, level = logging.root.handlers[:], logging.root.level
    stream = io.StringIO()
    configure_logging("echo", "info", stream)
    yield stream
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


def test_line_holds_all_there_is_to_know(stream: io.StringIO) -> None:
    """Message, fields and origin stand under names of their own."""
    logging.getLogger("somewhere").info("done %s", "well", extra=fields(count=3, key=b"k"))
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "service": "echo",
        "logger": "somewhere",
        "message": "done well",
        "fields": {"count": 3, "key": "b'k'"},
    }


def test_traceback_stays_on_one_line(stream: io.StringIO) -> None:
    """An exception does not break the format of a line per record."""
    try:
        raise ValueError("no\ngood")
    except ValueError:
        logging.exception("failed")
    (text,) = stream.getvalue().splitlines()
    assert "ValueError: no\ngood" in json.loads(text)["exception"]


def test_level_is_respected_and_checked(stream: io.StringIO) -> None:
    """Records below the level are not written; an unknown level is refused."""
    logging.getLogger().debug("quiet")
    assert stream.getvalue() == ""
    with pytest.raises(ValueError, match="known are debug, info, warning, error"):
        configure_logging("echo", "loud")
