"""Logs as JSON lines."""

from __future__ import annotations

import io
import json
import logging
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from viewstamp.telemetry import JsonFormatter, configure_logging, fields
from viewstamp.telemetry.logs import LineHandler


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Set the directory of logs in this test, and restore the former handlers after it."""
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


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """Limit this process's file size: a write beyond it is lost as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_costs_the_lines_it_refused_and_no_other(tmp_path: Path) -> None:
    """A line that was cut short ends there; with room again, the log says how many are missing."""
    path = tmp_path / "log"
    with path.open("wb", buffering=0) as file:
        handler = LineHandler(file.fileno())
        handler.setFormatter(JsonFormatter("echo"))
        log = logging.Logger("alone")
        log.addHandler(handler)
        log.info("before")
        with files_of_at_most(path.stat().st_size + 10):
            log.info("cut")
            log.info("refused")
        log.info("after")
        log.info("at last")
    whole, cut, *others = path.read_text().splitlines()
    assert json.loads(whole)["message"] == "before"
    assert cut == whole[:10]
    after, lost, last = (json.loads(line) for line in others)
    assert (after["message"], last["message"]) == ("after", "at last")
    assert lost["fields"] == {"lines": 2}
