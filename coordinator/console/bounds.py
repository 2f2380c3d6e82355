"""How much the console takes of its process, whoever asks."""

from __future__ import annotations

from typing import Final

from viewstamp.limits import KIB

# --- Connections ---

CONNECTIONS_MAX: Final = 256
# A browser opens six. Behind a proxy all users have one address.
CONNECTIONS_PER_ADDRESS_MAX: Final = 64
HEAD_BYTES_MAX: Final = 16 * KIB
BODY_BYTES_MAX: Final = 4 * KIB
TARGET_CHARACTERS_MAX: Final = 2 * KIB
# From the first moment in which a request could come to its last byte; silence counts, too.
REQUEST_TIMEOUT_MS: Final = 15_000
# So long a client may leave what is written to it unread.
READING_TIMEOUT_MS: Final = 10_000
UNREAD_BYTES_MAX: Final = 64 * KIB
# What a refused request still sends is read and dropped, so that the answer arrives.
LINGER_MS: Final = 1_000
LINGER_BYTES_MAX: Final = 256 * KIB

# --- Sessions ---

SESSIONS_MAX: Final = 1_000
SESSIONS_PER_USER_MAX: Final = 16
SESSION_SECRET_BYTES: Final = 32

# --- Reads of the cluster ---

CALL_TIMEOUT_MS: Final = 15_000
ROWS_PER_PAGE: Final = 50
SNAPSHOTS_SHOWN: Final = 20
GROUPS_SHOWN: Final = 20
# Of one group; the lag of a larger one is marked as not whole.
GROUP_PARTITIONS_READ_MAX: Final = 1_024
GROUP_READS_AT_ONCE: Final = 4
# The lags of one session are read again after so long, whoever asks, and kept for so many sessions.
LAGS_KEPT_MS: Final = 10_000
LAGS_MAX: Final = 64
# A filter looks at so many rows for one page, so many at a time: the last ones are all shown.
FILTERED_ROWS_MAX: Final = 5_000
FILTERED_PAGE_ROWS: Final = 200
FILTER_CHARACTERS_MAX: Final = 256

# --- Live events ---

STREAMS_MAX: Final = 128
STREAMS_PER_USER_MAX: Final = 16
STREAMS_PER_SESSION_MAX: Final = 4
TICK_MS: Final = 2_000
# Changes are told together, at most so often.
CHANGES_INTERVAL_MS: Final = 500
HEARTBEAT_MS: Final = 10_000
# After a watch has ended for a reason that may pass.
WATCH_PAUSE_MS: Final = 2_000

# --- Room on disks ---

ROOM_INTERVAL_MS: Final = 10_000
