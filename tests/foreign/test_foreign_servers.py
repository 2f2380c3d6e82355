"""Our client cannot be told from the gRPC library's by servers in Go, JavaScript and Java.

Method: a client of ours and one of the library hold the same conversations (`conversations.jsonl`)
with each server, with and without TLS. Both have to see the same: codes, words, metadata, and the
digest of all messages. The servers have small windows and serve 100 calls at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import pytest

from tests.foreign.conversing import check_codes, differences, held
from tests.foreign.languages import ForeignEnds
from viewstamp.transports import GRPCIO, WIRE

pytestmark = pytest.mark.foreign

# What the library sometimes gets wrong, and ours may not: of these it is not compared with.
AT_RISK_IN_THE_LIBRARY: Final = {
    "a deadline": "a server that ends it a moment sooner by a reset: CANCELLED",
    "waits side by side": "the same",
    "refusal among requests": "a request that is refused by the library itself: INTERNAL",
}


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "TLS"])
def test_our_client_sees_no_difference(
    ends: ForeignEnds, is_encrypted: bool, tmp_path: Path
) -> None:
    """All conversations with a server come to the same for both clients, as they are meant to."""
    library, ours = (
        held(
            (sys.executable, "-m", "tests.foreign.client", transport),
            ends.server,
            tmp_path / transport,
            is_encrypted=is_encrypted,
        )
        for transport in (GRPCIO, WIRE)
    )
    check_codes(ours)
    for name in AT_RISK_IN_THE_LIBRARY:
        library[name] = ours[name]
    assert not differences(library, ours)
