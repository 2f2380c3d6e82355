"""Every limit of the system, each with its unit.

Limits that decide how a command is applied are compile-time constants on purpose: an apply that
branches on local configuration forks the replicas.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# --- Names and entities (decided by the machines, at log order) ---
NAME_BYTES_MIN: Final = 1
NAME_BYTES_MAX: Final = 255
USERNAME_BYTES_MIN: Final = 3
USERNAME_BYTES_MAX: Final = 50
PASSWORD_BYTES_MIN: Final = 3
PASSWORD_BYTES_MAX: Final = 100
TOKEN_NAME_BYTES_MIN: Final = 3
TOKEN_NAME_BYTES_MAX: Final = 30
TOKENS_PER_USER_MAX: Final = 100
STREAMS_MAX: Final = 1 << 20
TOPICS_PER_STREAM_MAX: Final = 4096
PARTITIONS_PER_REQUEST_MAX: Final = 1000
PARTITIONS_PER_TOPIC_MAX: Final = 1_000_000
REPLICATION_FACTOR_MAX: Final = 255
SEGMENT_SIZE_BYTES_MIN: Final = 1 * MIB
SEGMENT_SIZE_BYTES_MAX: Final = 1024 * MIB
SEGMENT_SIZE_BYTES_MULTIPLE: Final = 512
REVOCATION_TIMEOUT_US: Final = 30_000_000

# --- Pages ---
PAGE_SIZE_DEFAULT: Final = 100
PAGE_SIZE_MAX: Final = 1000

# --- Well-known ids ---
ROOT_USER_ID: Final = 0
ROOT_USERNAME: Final = "root"
FIRST_USER_ID: Final = 1
# The principal of commands that the primary itself proposes.
SYSTEM_USER_ID: Final = (1 << 63) - 1
# The session of callers that have none: no window, no cached replies.
GATEWAY_SESSION_ID: Final = 0

# --- Requests and prepares ---
REQUEST_COMMANDS_MAX: Final = 8190
PREPARE_COMMANDS_MAX: Final = 8190
PREPARE_BODY_BYTES_MAX: Final = 1 * MIB
MESSAGE_BYTES_MAX: Final = 4 * MIB
COMMAND_BYTES_MAX: Final = 256 * KIB
TRANSACTION_PARTS_MAX: Final = 128
PIPELINE_PREPARES_MAX: Final = 8
UNRETIRED_PREPARES_MAX: Final = 16

# --- Sessions ---
SESSION_WINDOW_REQUESTS: Final = 8
SESSIONS_MAX: Final = 65_536
SESSIONS_PER_USER_MAX: Final = 64
SESSION_REPLIES_BYTES_MAX: Final = 256 * MIB
SESSION_NONCE_BYTES: Final = 16
SESSION_IDLE_TIMEOUT_MS: Final = 600_000

# --- Identity ---
CLUSTER_ID_BYTES: Final = 16
BOOT_NONCE_BYTES: Final = 16
CLUSTER_KEY_BYTES: Final = 32
REPLICAS_MAX: Final = 6
# Replicas without a vote, beside those.
STANDBYS_MAX: Final = 6
FEATURE_LEVEL: Final = 1

# --- Time ---
READ_DEADLINE_MS: Final = 5_000
# A unary command without an answer: its caller is told that the outcome is unknown.
COMMAND_DEADLINE_MS: Final = 30_000
STAGE_TIMEOUT_MS: Final = 2_000
# A walk over millions of entities, at some microseconds each.
STATE_DIGEST_TIMEOUT_MS: Final = 60_000
TICK_MS: Final = 10
HEARTBEAT_MS: Final = 50
ACCESS_TOKEN_LIFETIME_US: Final = 3_600_000_000
LOGIN_FAILURES_PER_MINUTE_MAX: Final = 5

# --- Memory ---
ITEM_LOG_BYTES_MAX: Final = 512 * MIB

# Beyond this a cut is triggered, after which the log begins anew.
ITEM_LOG_CUT_BYTES: Final = 256 * MIB

# --- Snapshots ---
SNAPSHOT_COPIES: Final = 3
LAYER_BLOCK_BYTES_MAX: Final = 256 * KIB
# One entity, and so a block that holds nothing else.
ENTITY_BYTES_MAX: Final = 16 * MIB
# Between two looks at the event loop, while a section is encoded.
ENCODE_SLICE_US: Final = 200
SNAPSHOT_DEADLINE_MS: Final = 120_000
SNAPSHOT_COMMANDS: Final = 1_000_000
SNAPSHOT_JOURNAL_BYTES: Final = 256 * MIB
SNAPSHOT_INTERVAL_MS: Final = 3_600_000
SNAPSHOT_KEEP_LAST: Final = 5
SNAPSHOT_KEEP_DAILY: Final = 7
# A chain of deltas is merged into a new base beyond this part of the base's bytes, or so many.
COMPACT_DELTAS_PERCENT: Final = 50
COMPACT_LAYERS_MAX: Final = 16
# Below, merging would cost more at every snapshot than the layers cost at a restart.
COMPACT_DELTAS_BYTES_MIN: Final = 256 * KIB
# Kept free on each copy directory, to be given up when the disk is full.
SNAPSHOT_RESERVE_BYTES_MIN: Final = 64 * MIB
SNAPSHOT_RESERVE_PERCENT: Final = 125

# --- gRPC ---
STREAMS_PER_CONNECTION_MAX: Final = 100

# --- Replication (coordinator.vsr) ---
PREPARE_RESEND_MS: Final = 250
FOUNDING_QUERY_MS: Final = 500
# A backup that hears nothing from the primary for so long, and up to the jitter more, suspects it.
SUSPICION_MS: Final = 250
SUSPICION_JITTER_MS: Final = 150
START_VIEW_CHANGE_RESEND_MS: Final = 100
DO_VIEW_CHANGE_RESEND_MS: Final = 100
START_VIEW_REQUEST_MS: Final = 100
REPAIR_RESEND_MS: Final = 100
READ_INDEX_RESEND_MS: Final = 100
# A view change that takes longer gives way to the next; doubled each time, with jitter.
VIEW_CHANGE_MS: Final = 500
VIEW_CHANGE_MS_MAX: Final = 8_000
# A primary that a replication quorum did not answer for so long resigns.
ABDICATE_MS: Final = 5_000
# So does one whose stages have not got on for so long, if another replica is fit to lead.
APPLY_STALL_MS: Final = 5_000
# Committed entries asked for in one message.
CATCH_UP_OPS: Final = 16
# Journal that a snapshot covers is kept for a replica that was heard so lately, up to so much.
RETAIN_FOR_BACKUP_MS: Final = 60_000
RETAIN_FOR_BACKUP_BYTES_MAX: Final = 64 * MIB
# A replica further behind than this does not lead the next view.
FORFEIT_LAG_OPS: Final = 64
READ_INDEXES_WAITING_MAX: Final = 65_536
# Reads that share a message to a stage. Any one read fits: it came in one message itself.
READS_TOGETHER_MAX: Final = REQUEST_COMMANDS_MAX
READS_TOGETHER_BYTES_MAX: Final = 2 * MESSAGE_BYTES_MAX

# --- Domain services (services.runtime) ---
# An Apply message holds up to a prepare and its contexts, or the answers of many packed reads.
APPLY_MESSAGE_BYTES_MAX: Final = 64 * MIB
# All answers to reads in one batch, which leaves room for as many refusals.
APPLY_ANSWERS_BYTES_MAX: Final = 48 * MIB
APPLY_REPLIES_WAITING_MAX: Final = 64
SERVICE_THREADS_MAX: Final = 4
DEFERRED_QUERIES_MAX: Final = 1024
SERVICE_STOP_GRACE_MS: Final = 1_000
UNIX_SOCKET_PATH_BYTES_MAX: Final = 107
GARBAGE_INTERVAL_MS: Final = 1_000
