"""Clients in Go, JavaScript and Java cannot tell our transport from the gRPC library.

Method: each client holds the same conversations (`conversations.jsonl`) with a server of the
library and with one of ours, with and without TLS, and both times it has to see the same: codes,
words, metadata, and the digest of all messages. The table below says where ours is different.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from tests.foreign.clients import CLIENTS, ForeignClient
from tests.foreign.serving import serving
from tests.viewstamp.wire.tls_ends import SERVER
from viewstamp.transports import GRPCIO, WIRE

pytestmark = pytest.mark.foreign

TABLE: Final = (Path(__file__).parent / "conversations.jsonl").read_text()
CONVERSATION_S: Final = 300
# Ours takes no compressed messages, and says so (ADR 30).
REFUSED_BY_OURS: Final = {"compressed": grpc.StatusCode.UNIMPLEMENTED}
# Both ends know the deadline, and the words are of whichever finds first that it has passed.
WORDED_BY_EITHER: Final = ("a deadline", "waits side by side")
# What a conversation is for has to happen, whoever serves; all others are to end well.
CODES: Final = {
    "beyond the limit": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "refusal": grpc.StatusCode.ALREADY_EXISTS,
    "empty refusal": grpc.StatusCode.ALREADY_EXISTS,
    "a bug of the server": grpc.StatusCode.UNKNOWN,
    "unknown method": grpc.StatusCode.UNIMPLEMENTED,
    "a deadline": grpc.StatusCode.DEADLINE_EXCEEDED,
    "cancelled": grpc.StatusCode.CANCELLED,
    "cancelled among answers": grpc.StatusCode.CANCELLED,
    "waits side by side": grpc.StatusCode.DEADLINE_EXCEEDED,
}


@pytest.fixture(scope="module", params=CLIENTS, ids=lambda client: client.language)
def command(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, ...]:
    """Build a client, and return its command."""
    client: ForeignClient = request.param
    return client.built_in(tmp_path_factory.mktemp("client"))


def held(
    command: tuple[str, ...], transport: str, directory: Path, *, is_encrypted: bool
) -> dict[str, Any]:
    """Hold all conversations, and return the outcomes of each."""
    directory.mkdir()
    with serving(transport, directory) as addresses:
        authority = directory / "authority"
        files = (
            authority / "authority.pem",
            authority / f"{SERVER}.pem",
            authority / f"{SERVER}.key",
        )
        arguments = map(str, files if is_encrypted else ())
        done = subprocess.run(
            [*command, addresses[is_encrypted], *arguments],
            input=TABLE,
            capture_output=True,
            text=True,
            timeout=CONVERSATION_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    outcomes = {row["name"]: row["outcomes"] for row in map(json.loads, done.stdout.splitlines())}
    for outcome in [each for name in WORDED_BY_EITHER for each in outcomes[name]]:
        del outcome["details"]
    return outcomes


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "TLS"])
def test_foreign_clients_see_no_difference(
    command: tuple[str, ...], is_encrypted: bool, tmp_path: Path
) -> None:
    """All conversations come to the same on both transports, and to what they are for."""
    library, ours = (
        held(command, transport, tmp_path / transport, is_encrypted=is_encrypted)
        for transport in (GRPCIO, WIRE)
    )
    assert len(library) == len(TABLE.splitlines())
    for name, outcomes in library.items():
        expected = CODES.get(name, grpc.StatusCode.OK).value[0]
        assert {outcome["code"] for outcome in outcomes} == {expected}, (name, outcomes[:2])
    refused = {name: ours.pop(name) for name in REFUSED_BY_OURS}
    assert {name: outcomes[0]["code"] for name, outcomes in refused.items()} == {
        name: code.value[0] for name, code in REFUSED_BY_OURS.items()
    }
    different = {name: (library[name], ours[name]) for name in ours if library[name] != ours[name]}
    assert not different
