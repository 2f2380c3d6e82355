"""Clients in Go, JavaScript and Java cannot tell our transport from the gRPC library.

Method: each client holds the same conversations (`conversations.jsonl`) with a server of the
library and with one of ours, with and without TLS, and both times it has to see the same: codes,
words, metadata, and the digest of all messages. The table below says where ours is different.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import grpc
import pytest

from tests.foreign.conversing import check_codes, differences, held
from tests.foreign.languages import ForeignEnds
from tests.foreign.serving import python_server
from viewstamp.transports import GRPCIO, WIRE

pytestmark = pytest.mark.foreign

# Ours takes no compressed messages, and says so (ADR 30).
REFUSED_BY_OURS: Final = {"compressed": grpc.StatusCode.UNIMPLEMENTED}


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "TLS"])
def test_foreign_clients_see_no_difference(
    ends: ForeignEnds, is_encrypted: bool, tmp_path: Path
) -> None:
    """All conversations come to the same on both transports, and to what they are for."""
    library, ours = (
        held(ends.client, python_server(transport), tmp_path / transport, is_encrypted=is_encrypted)
        for transport in (GRPCIO, WIRE)
    )
    check_codes(library)
    refused = {name: ours.pop(name) for name in REFUSED_BY_OURS}
    assert {name: outcomes[0]["code"] for name, outcomes in refused.items()} == {
        name: code.value[0] for name, code in REFUSED_BY_OURS.items()
    }
    assert not differences(library, ours)
