"""Fingerprints: whether a request under a known number is the same request as before.

A number used for two different requests is a defect of the client. If the second got the reply of
the first, it would pass for done. So the digest of what the client sent, before it was made
loggable, is kept with requests in flight, with the entry in the log, and with the reply while that
is kept.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

from blake3 import blake3

from viewstamp.limits import FINGERPRINT_BYTES

_SPAN: Final = struct.Struct("<QQQ")

# A span as the client sent it: code, count, items. A plain tuple, read from its message once.
SentSpan: TypeAlias = tuple[int, int, bytes]


def fingerprint(spans: Sequence[SentSpan]) -> bytes:
    """Return the fingerprint of the spans of a request."""
    parts = []
    for code, count, items in spans:
        parts.append(_SPAN.pack(code, count, len(items)))
        parts.append(items)
    return blake3(b"".join(parts)).digest(length=FINGERPRINT_BYTES)
