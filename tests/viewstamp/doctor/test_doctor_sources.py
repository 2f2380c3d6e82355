"""Sources of `viewstamp doctor` that are odd, slow or hostile: each wait ends, and so does it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from viewstamp.doctor import gathering
from viewstamp.doctor.deadlines import ended_within
from viewstamp.doctor.evidence import DoctorEvidence

DRIP: Final = b"HTTP/1.0 200 OK\r\n\r\n" + b"# a comment without end"
NOT_HTTP: Final = b"\x00\x00\x06\x04 what a server of HTTP/2 says first\n"
CUT_OFF: Final = b"HTTP/1.0 200 OK\r\nContent-Length: 100\r\n\r\nviewstamp_op 1\n"


@contextmanager
def serving(answer: bytes, *, is_endless: bool = False) -> Iterator[str]:
    """Give an answer to one caller; an endless one comes byte by byte until the end."""
    done = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            for byte in answer if is_endless else ():
                connection.send(bytes((byte,)))
                done.wait(0.01)
            if is_endless:
                done.wait()
            else:
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            done.set()
            thread.join()


def look(evidence: DoctorEvidence, address: str) -> str:
    """Look at a page that fails, and return why."""
    gathering.tried(evidence, "page", partial(gathering.look_at_page, evidence, address))
    return evidence.failures["page"]


@pytest.mark.parametrize("answer", [NOT_HTTP, CUT_OFF])
def test_what_is_no_page(answer: bytes) -> None:
    """An answer that is not HTTP, or is cut off, is told as such."""
    with serving(answer) as address:
        assert "it serves no metrics page" in look(DoctorEvidence(0.0), address)


def test_what_is_no_address() -> None:
    """An address that cannot be one is told."""
    assert "it serves no metrics page" in look(DoctorEvidence(0.0), "a b:1")


def test_a_page_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that comes byte by byte is given up, however often a byte comes."""
    monkeypatch.setattr(gathering, "PAGE_TIMEOUT_S", 0.1)
    with serving(DRIP, is_endless=True) as address:
        assert "no whole answer within 0.1 s" in look(DoctorEvidence(0.0), address)


def test_calls_within_a_deadline() -> None:
    """Values and errors of a call pass."""
    assert ended_within(60.0, lambda: 5) == 5
    with pytest.raises(KeyError):
        ended_within(60.0, lambda: {"a": 1}["b"])


def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    """A log, a key or a lock that is a pipe without a writer fails at once."""
    os.mkfifo(tmp_path / "pipe.log")
    evidence = DoctorEvidence(0.0)
    with pytest.raises(OSError, match="no regular file"):
        gathering.look_at_log(evidence, tmp_path / "pipe.log")
    for name in ("cluster.key", "LOCK"):
        directory = tmp_path / f"with-{name}"
        directory.mkdir()
        os.mkfifo(directory / name)
        with pytest.raises(OSError, match="no regular file"):
            gathering.look_at_directory(evidence, directory)


def test_links_lead_nowhere(tmp_path: Path) -> None:
    """A link among the logs of a directory brings no file of others; one that is named may."""
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "log").mkdir()
    link = tmp_path / "log" / "a.log"
    link.symlink_to(tmp_path / "mine")
    evidence = DoctorEvidence(0.0)
    with pytest.raises(OSError):
        gathering.look_at_directory(evidence, tmp_path)
    assert evidence.logs == {}
    gathering.look_at_log(evidence, link)
    assert evidence.logs == {str(link): "mine"}


def test_files_that_vanish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that a running replica deletes meanwhile is left out."""
    (tmp_path / "there").write_text("")
    monkeypatch.setattr(Path, "iterdir", lambda self: iter([self / "there", self / "gone"]))
    evidence = DoctorEvidence(0.0)
    gathering.look_at_directory(evidence, tmp_path)
    assert evidence.directories[str(tmp_path)]["files"].keys() == {"there"}


@pytest.mark.parametrize("lock", ["", "0", "-1", "x", "9" * 31])
def test_a_lock_of_nobody(tmp_path: Path, lock: str) -> None:
    """A lock file whose number is of no process says that nothing runs."""
    (tmp_path / "LOCK").write_text(lock)
    evidence = DoctorEvidence(0.0)
    gathering.look_at_directory(evidence, tmp_path)
    assert evidence.directories[str(tmp_path)]["process"] is None


@contextmanager
def coordinator_like(directory: Path, word: bytes = b"") -> Iterator[int]:
    """Run a process that looks like a coordinator on a directory."""
    command: list[str | bytes] = [
        sys.executable,
        "-c",
        "print(flush=True); input()",
        "coordinator",
        word,
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()  # before that the system does not show its arguments
        (directory / "LOCK").write_text(str(process.pid))
        yield process.pid
        process.communicate()


def process_of(directory: Path) -> dict[str, object]:
    """Return what the doctor says of the process of a directory."""
    evidence = DoctorEvidence(0.0)
    gathering.look_at_directory(evidence, directory)
    found: dict[str, object] = evidence.directories[str(directory)]["process"]
    return found


def test_arguments_that_are_no_text(tmp_path: Path) -> None:
    """A process whose arguments are no UTF-8 is one."""
    with coordinator_like(tmp_path, b"--data-directory=\xff") as number:
        assert process_of(tmp_path)["pid"] == number


@pytest.mark.parametrize(("name", "hidden"), [("environ", ["variables"]), ("", ["arguments"])])
def test_processes_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, hidden: list[str]
) -> None:
    """A process of which the system does not show variables, or nothing at all, still runs."""
    read = Path.read_bytes

    def refused(path: Path) -> bytes:
        if str(path).startswith("/proc/") and path.name.startswith(name):
            raise PermissionError(13, "not yours", str(path))
        return read(path)

    with coordinator_like(tmp_path) as number:
        monkeypatch.setattr(Path, "read_bytes", refused)
        process = process_of(tmp_path)
        monkeypatch.undo()
    assert process["pid"] == number
    assert [process[each] for each in hidden] == [None]
