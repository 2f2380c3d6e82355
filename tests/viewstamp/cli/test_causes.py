"""The cause that an error names, and the step that it advises."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import typer

from tests.deploy.certificates import self_signed
from tests.viewstamp.cli.conftest import CommandLine
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.cli.session import NEXT_STEPS
from viewstamp.texts.general import GENERAL
from viewstamp.texts.table import TEXTS


@pytest.fixture
def web_server() -> Iterator[str]:
    """The address of a listener that is not a cluster."""
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_nobody_there_exits_with_3(stranger: CommandLine) -> None:
    """If nothing listens, the error names the address and the next step."""
    said = stranger("login", "--address", "127.0.0.1:1", "--timeout", "0.5", answer="x\n")
    assert said.code == 3
    assert "CANNOT_CONNECT" in said.err
    assert "127.0.0.1:1" in said.err
    assert "viewstamp up" in said.err


def test_a_login_is_not_asked_for_where_nobody_listens(stranger: CommandLine) -> None:
    """A wrong port is named before a login that is missing: to log in would fail alike."""
    said = stranger("stream", "list", "--address", "127.0.0.1:1")
    assert said.code == 3
    assert "CANNOT_CONNECT: nothing listens at 127.0.0.1:1." in said.err
    assert "viewstamp login" not in said.err


def test_an_authority_too_many_is_named(viewstamp: CommandLine, tmp_path: Path) -> None:
    """The error distinguishes a cluster without TLS from an absent one, and names the option."""
    authority = tmp_path / "ca.crt"
    self_signed(authority)
    said = viewstamp("stream", "list", "--tls-ca", str(authority), "--timeout", "0.5")
    assert said.code == 3
    assert "does not speak TLS" in said.err
    assert "Next: leave out --tls-ca" in said.err


def test_a_login_is_not_asked_for_where_no_cluster_listens(
    stranger: CommandLine, web_server: str
) -> None:
    """Something else behind the port is named before a login that is missing."""
    said = stranger("stream", "list", "--address", web_server)
    assert said.code == 3
    assert f"what listens at {web_server} is no Viewstamp cluster" in said.err
    assert "viewstamp login" not in said.err


@pytest.mark.parametrize(
    ("content", "problem"), [(None, "No such file"), ("hello", "holds no certificate")]
)
def test_an_authority_of_no_use_is_named(
    viewstamp: CommandLine, tmp_path: Path, content: str | None, problem: str
) -> None:
    """A file that holds no certificate is named before any connection, given or kept by a login."""
    authority = tmp_path / "ca.crt"
    if content is not None:
        authority.write_text(content)
    said = viewstamp("stream", "list", "--tls-ca", str(authority))
    assert (said.code, problem in " ".join(said.err.split())) == (2, True)
    tokens = viewstamp.home / "viewstamp" / "tokens.json"
    tokens.write_text(tokens.read_text().replace('"tls_ca": null', f'"tls_ca": "{authority}"'))
    kept = viewstamp("stream", "list")
    assert kept.code == 2
    assert f"CANNOT_READ: the login names an authority that is of no use: {authority}" in kept.err
    assert "with --tls-ca." in kept.err


@pytest.mark.parametrize(
    ("command", "reason", "advice"),
    [
        (("stream", "delete", "orders"), "NOT_CONFIRMED", "--yes"),
        (("user", "create", "alice"), "PASSWORD_NEEDED", "--password-file"),
    ],
)
def test_an_input_that_ends_is_no_answer(
    viewstamp: CommandLine, command: tuple[str, ...], reason: str, advice: str
) -> None:
    """A question that gets no answer is an error, which names the option that answers it."""
    said = viewstamp(*command, answer="")
    (line,) = [line for line in said.err.splitlines() if "error: " in line]
    assert (said.code, reason in line, advice in line) == (2, True, True)
    assert "Aborted" not in said.err


def test_ctrl_c_at_a_question_interrupts(
    viewstamp: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C at a question exits as it does anywhere, and is not an answer."""

    def interrupted(*_: object, **__: object) -> bool:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise typer.Abort from None

    monkeypatch.setattr(typer, "confirm", interrupted)
    assert viewstamp("stream", "delete", "orders").code == 130


def test_an_error_is_one_line(viewstamp: CommandLine) -> None:
    """No log line of the client stands above the error."""
    done = subprocess.run(
        [sys.executable, "-m", "viewstamp.cli", "--address", viewstamp.address, "stream", "list"],
        env={**os.environ, "VIEWSTAMP_ACCESS_TOKEN": "wrong"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: UNAUTHENTICATED: ")


@pytest.mark.parametrize("reason", NEXT_STEPS, ids=Reason.Name)
def test_the_next_step_adds_to_the_text(reason: Reason.ValueType) -> None:
    """The next step does not repeat the advice in the text of a refusal."""
    texts = [text for (of, _), text in TEXTS.items() if of == reason]
    for text in [*texts, GENERAL.get(reason, "")]:
        assert not _neighbours(text) & _neighbours(NEXT_STEPS[reason])


def _neighbours(text: str) -> set[tuple[str, str, str]]:
    """Return every three words in a row."""
    words = [word.strip(".,;:`()").lower() for word in text.split()]
    return set(zip(words, words[1:], words[2:], strict=False))
