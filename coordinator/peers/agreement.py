"""What replicas must agree on: a digest over the limits that decide how a command is applied.

Every whole number in `viewstamp.limits` counts, unless it is a duration in milliseconds (no machine
decides by those), names a feature level, or is listed here with its reason. So a new limit must
agree until it is listed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from blake3 import blake3

from viewstamp import limits

LOCAL_SUFFIX: Final = "_MS"
# The log decides the level in force; these are the levels that a build knows, by name.
LOCAL_PREFIX: Final = "FEATURE_LEVEL_"

# Limits of one process, which may differ between replicas, as they do during an upgrade.
LOCAL_LIMITS: Final = frozenset(
    {
        "LOGIN_FAILURES_PER_MINUTE_MAX",
        "LOGIN_FAILURES_PER_ADDRESS_MAX",
        "LOGIN_FAILURES_PER_NAME_MAX",
        "LOGIN_REMEMBERED_US",
        "LOGINS_REMEMBERED_MAX",
        "LOGINS_WAITING_MAX",
        "LOGINS_WAITING_PER_ADDRESS_MAX",
        "LOGINS_WAITING_TRUSTED_MAX",
        "HASHES_WAITING_MAX",
        "HASHES_WAITING_PER_USER_MAX",
        # Decided before the log.
        "NORMALIZED_COMMANDS_MAX",
        "NORMALIZED_TOGETHER_MAX",
        "REQUEST_RUNS_MAX",
        "PREPARE_RUNS_MAX",
        "COMMANDS_PER_RUN",
        # No command sees how many standbys there are; the hello compares the number itself.
        "STANDBYS_MAX",
        # The replica that answers makes the texts.
        "REFUSAL_TEXT_BYTES_MAX",
        "REFUSAL_METADATA_BYTES_MAX",
        "REPLY_TEXTS_BYTES_MAX",
        # The primary decides what it proposes.
        "MEMBERS_CHECKED_MAX",
        "SIGNS_TOGETHER_MAX",
        "SIGNS_TOGETHER_PER_USER_MAX",
        "SIGN_BYTES_MAX",
        "NOTICES_TOGETHER_MAX",
        "MEMBERS_EXPIRED_MAX",
        # Memory, queues and threads.
        "STAGE_UNANSWERED_BYTES_MAX",
        "ITEM_LOG_BYTES_MAX",
        "ITEM_LOG_CUT_BYTES",
        "READ_INDEXES_WAITING_MAX",
        "SESSION_REPLIES_BYTES_MAX",
        "SESSION_REPLIES_BYTES_NEAR",
        "SESSION_REPLIES_BYTES_PER_USER_MAX",
        "SESSION_REPLIES_BYTES_PER_SESSION_MAX",
        "REPLY_BYTES_EXPECTED",
        "REPLY_BYTES_EXPECTED_PER_COMMAND",
        "COMMANDS_UNDER_WAY_PER_USER_MAX",
        "COMMAND_BYTES_UNDER_WAY_PER_USER_MAX",
        "COMMANDS_UNDER_WAY_MAX",
        "READS_UNDER_WAY_PER_USER_MAX",
        "READS_UNDER_WAY_MAX",
        "QUOTA_COMMANDS_PER_USER",
        "QUOTA_BYTES_PER_USER",
        "QUOTA_USERS_MAX",
        "METADATA_BYTES_MAX",
        "SUBMIT_STREAMS_PER_USER_MAX",
        "SUBMIT_STREAMS_MAX",
        "CONNECTIONS_MAX",
        "OPEN_FILES_MAX",
        "SNAPSHOT_STREAMS_PER_USER_MAX",
        "STATUS_DIGESTS_PER_USER_MAX",
        "STATUS_DIGESTS_MAX",
        "COMMANDS_IN_TURN",
        "TURN_BYTES_PER_COMMAND",
        "READS_WAITING_PER_CALLER_MAX",
        "READS_WAITING_BYTES_MAX",
        "READS_WAITING_PER_CALLER_BYTES_MAX",
        "READ_GROUPS_IN_FLIGHT_MAX",
        "READ_GROUP_CALLS_MIN",
        "READ_GROUP_CALLS_MAX",
        "READ_SLICE_US",
        "READ_REFUSAL_BYTES",
        "DIGESTS_WAITING_MAX",
        "READS_TOGETHER_MAX",
        "READS_TOGETHER_BYTES_MAX",
        # What watchers are shown is no part of any answer in the log.
        "PEER_ADDRESS_BYTES_MAX",
        "CHANGES_KEPT_BYTES_MAX",
        "CHANGES_PAGE_MAX",
        "CHANGES_PAGE_BYTES_MAX",
        "CHANGES_PASSED_MAX",
        "WATCHES_MAX",
        "WATCHES_PER_USER_MAX",
        "WATCH_MESSAGE_BYTES_MAX",
        "CATCH_UPS_MAX",
        "CATCH_UPS_PER_USER_MAX",
        "FEED_BYTES_MAX",
        "STREAMS_PER_CONNECTION_MAX",
        "APPLY_MESSAGE_BYTES_MAX",
        "APPLY_ANSWERS_BYTES_MAX",
        "APPLY_REPLIES_WAITING_MAX",
        "SERVICE_THREADS_MAX",
        "DEFERRED_QUERIES_MAX",
        "UNIX_SOCKET_PATH_BYTES_MAX",
        # Came with FEATURE_LEVEL_DESCRIPTION: builds without that level lack it, must run beside
        # those with it, and never apply a command of the level, since they end when it is raised.
        # All builds with the level have one value, because the value is part of the level: another
        # value needs another level. The same is true of those below.
        "DESCRIPTION_BYTES_MAX",
        # Came with FEATURE_LEVEL_MEMBERS.
        "MEMBER_TIMEOUT_US",
        "MEMBER_TIMEOUT_MIN_US",
        "MEMBER_TIMEOUT_MAX_US",
        # Came with FEATURE_LEVEL_OFFSETS.
        "OFFSET_MAX",
        "OFFSETS_PER_REQUEST_MAX",
        "PARTITIONS_PER_OFFSETS_ROW",
        # Came with FEATURE_LEVEL_RETENTION.
        "OFFSETS_RETENTION_MIN_US",
        "OFFSETS_RETENTION_MAX_US",
        "OFFSETS_IDLE_STEP_US",
        "OFFSETS_LOOK_US_MAX",
        # Came with FEATURE_LEVEL_BROKERS.
        "BROKER_TIMEOUT_US",
        "BROKER_TIMEOUT_MIN_US",
        "BROKER_TIMEOUT_MAX_US",
        "BROKERS_MAX",
        "BROKER_ENDPOINTS_MAX",
        "BROKER_STORAGE_ID_BYTES_MAX",
        "REPLICAS_PER_PARTITION_MAX",
        # Came with FEATURE_LEVEL_KEPT_SNAPSHOTS.
        "SNAPSHOT_KEPT_FOR_MAX_US",
        # Came with FEATURE_LEVEL_TIMES.
        "MARKS_PER_ROW_MAX",
        "MARK_INTERVAL_US",
        "LOWERED_MARKS_MAX",
        "REPORT_AHEAD_US_MAX",
        # The replica that answers a read decides how long its page is, and when a member is to show
        # life again.
        "OFFSETS_PAGE_MAX",
        "BROKERS_PAGE_MAX",
        "MEMBER_SIGNS_PER_S",
        "MEMBER_SIGNS_PER_TIMEOUT",
        # Files of one replica: replicas compare digests, whatever the layering.
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
    return name.endswith(LOCAL_SUFFIX) or name.startswith(LOCAL_PREFIX) or name in LOCAL_LIMITS
