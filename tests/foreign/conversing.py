"""A client holds all conversations of the table with a server, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import grpc

from tests.foreign.serving import serving
from tests.tidy.tree import ROOT
from tests.viewstamp.wire.tls_ends import SERVER

TABLE: Final = (Path(__file__).parent / "conversations.jsonl").read_text()
CONVERSATION_S: Final = 300
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
    "refusal after answers": grpc.StatusCode.DATA_LOSS,
    "refusal among requests": grpc.StatusCode.OUT_OF_RANGE,
}

Outcomes: TypeAlias = dict[str, list[dict[str, Any]]]
"""What each conversation came to, once for each call of it."""


def held(
    client: Sequence[str], server: Sequence[str], directory: Path, *, is_encrypted: bool
) -> Outcomes:
    """Hold all conversations, and return the outcomes of each."""
    directory.mkdir()
    with serving(server, directory) as addresses:
        authority = directory / "authority"
        names = ("authority.pem", f"{SERVER}.pem", f"{SERVER}.key") if is_encrypted else ()
        done = subprocess.run(
            [*client, addresses[is_encrypted], *(str(authority / name) for name in names)],
            cwd=ROOT,
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


def check_codes(found: Outcomes) -> None:
    """Check that each conversation came to what it is for. Raises AssertionError."""
    assert len(found) == len(TABLE.splitlines())
    for name, outcomes in found.items():
        expected = CODES.get(name, grpc.StatusCode.OK).value[0]
        assert {outcome["code"] for outcome in outcomes} == {expected}, (name, outcomes[:2])


def differences(one: Outcomes, other: Outcomes) -> dict[str, Any]:
    """Return what conversations came to where it is not the same."""
    return {name: (one[name], other[name]) for name in other if one[name] != other[name]}
