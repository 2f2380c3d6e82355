"""What replicas must agree on: a digest over the limits that decide how a command is applied.

Every whole number in `viewstamp.limits` counts, unless it is a duration in milliseconds (no machine
sees those) or is listed here with its reason. So a new limit is agreed upon until somebody says
that it need not be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from blake3 import blake3

from viewstamp import limits

LOCAL_SUFFIX: Final = "_MS"

# Limits of one process, which may differ between replicas, as they do during an upgrade.
LOCAL_LIMITS: Final = frozenset(
    {
        # The level in force comes from the log; this is the highest that a build knows.
        "FEATURE_LEVEL",
        "LOGIN_FAILURES_PER_MINUTE_MAX",
        # No command sees how many standbys there are; the hello compares the number itself.
        "STANDBYS_MAX",
        # Memory, queues and threads.
        "ITEM_LOG_BYTES_MAX",
        "ITEM_LOG_CUT_BYTES",
        "READ_INDEXES_WAITING_MAX",
        "READS_TOGETHER_MAX",
        "READS_TOGETHER_BYTES_MAX",
        "STREAMS_PER_CONNECTION_MAX",
        "APPLY_MESSAGE_BYTES_MAX",
        "APPLY_ANSWERS_BYTES_MAX",
        "APPLY_REPLIES_WAITING_MAX",
        "SERVICE_THREADS_MAX",
        "DEFERRED_QUERIES_MAX",
        "UNIX_SOCKET_PATH_BYTES_MAX",
        # Files of one replica: what is compared is digests, whatever the layering.
        "SNAPSHOT_COPIES",
        "ENCODE_SLICE_US",
        "SNAPSHOT_COMMANDS",
        "SNAPSHOT_JOURNAL_BYTES",
        "SNAPSHOT_KEEP_LAST",
        "SNAPSHOT_KEEP_DAILY",
        "COMPACT_DELTAS_PERCENT",
        "COMPACT_LAYERS_MAX",
        "COMPACT_DELTAS_BYTES_MIN",
        "SNAPSHOT_RESERVE_BYTES_MIN",
        "SNAPSHOT_RESERVE_PERCENT",
    }
)


def agreed_limits() -> dict[str, int]:
    """Return the limits that every replica must have alike, by name, in ascending order."""
    return {
        name: value
        for name, value in sorted(vars(limits).items())
        if isinstance(value, int) and name.isupper() and not _is_local(name)
    }


def configuration_digest(agreed: Mapping[str, int]) -> bytes:
    """Return the 32 bytes of BLAKE3 over lines `NAME=value`, in the order given."""
    text = "".join(f"{name}={value}\n" for name, value in agreed.items())
    return blake3(text.encode()).digest()


def _is_local(name: str) -> bool:
    return name.endswith(LOCAL_SUFFIX) or name in LOCAL_LIMITS
