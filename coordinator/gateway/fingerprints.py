"""Fingerprints: whether what comes under a request number is what came under it before.

A number that is used twice for different requests is a defect of the client. Answered with the
reply of the first, the second would pass for done. So the digest of what the client sent, before
anything was made loggable, is kept with what is in flight, with the entry in the log, and with the
reply for as long as that is kept.
"""

from __future__ import annotations

import struct
from typing import Final

from blake3 import blake3

from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.limits import FINGERPRINT_BYTES

_SPAN: Final = struct.Struct("<QQQ")


def fingerprint(request: submit_pb2.CommandRequest) -> bytes:
    """Return the fingerprint of the spans of a request, as the client sent them."""
    parts = []
    for span in request.spans:
        items = span.items
        parts.append(_SPAN.pack(span.code, span.count, len(items)))
        parts.append(items)
    return blake3(b"".join(parts)).digest(length=FINGERPRINT_BYTES)
