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

# --- Refusals ---
# A name that is allowed fits; longer ones come from requests that are refused for them.
REFUSAL_DETAIL_BYTES_MAX: Final = 256
# Texts are made at the edge, for people: see `viewstamp.texts`.
REFUSAL_TEXT_BYTES_MAX: Final = 1_024
# All details of one refusal in a status: text, escaped and doubled as gRPC has it, and details stay
# below the 8 KiB of trailing metadata that every client takes.
REFUSAL_METADATA_BYTES_MAX: Final = 2 * KIB
# Texts of refusals in one reply to a request of many commands; the others come without.
REPLY_TEXTS_BYTES_MAX: Final = 256 * KIB

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
# Runs that one request may make: times that it goes through the stages, one after another. Commands
# that look at what an earlier one sends back, and grants between other commands, begin another.
REQUEST_RUNS_MAX: Final = 512
# Runs that all requests of one prepare make together: as many as one request may, which is about
# a third of a second of processor time. With so many under way the next prepare waits.
PREPARE_RUNS_MAX: Final = REQUEST_RUNS_MAX
# So many commands weigh as much of a share, and of a turn, as a run.
COMMANDS_PER_RUN: Final = 64
PIPELINE_PREPARES_MAX: Final = 8
UNAPPLIED_PREPARES_MAX: Final = 16

# --- Sessions ---
SESSION_WINDOW_REQUESTS: Final = 8
SESSIONS_MAX: Final = 65_536
SESSIONS_PER_USER_MAX: Final = 64
# Replies that wait to be acknowledged, in all, of one user, and of one session. Whoever is beyond
# their share is refused until they acknowledge; a session of the user who has the most is ended
# when all of them together come near the limit.
SESSION_REPLIES_BYTES_MAX: Final = 256 * MIB
SESSION_REPLIES_BYTES_NEAR: Final = SESSION_REPLIES_BYTES_MAX // 8 * 7
SESSION_REPLIES_BYTES_PER_USER_MAX: Final = 64 * MIB
SESSION_REPLIES_BYTES_PER_SESSION_MAX: Final = 32 * MIB
# What a reply is taken to need before it is there: so much by itself, and for each command.
REPLY_BYTES_EXPECTED: Final = 1 * KIB
REPLY_BYTES_EXPECTED_PER_COMMAND: Final = 512
# Commands that were taken in and not answered, of one user: as many as a session may send at most.
COMMANDS_UNDER_WAY_PER_USER_MAX: Final = 8 * 8190
COMMAND_BYTES_UNDER_WAY_PER_USER_MAX: Final = 16 * MIB
COMMANDS_UNDER_WAY_MAX: Final = 64 * 8190
# Reads that were taken in and not answered, of one user and in all, and what they ask with.
READS_UNDER_WAY_PER_USER_MAX: Final = 4 * 8190
READS_UNDER_WAY_MAX: Final = 32 * 8190
# How many commands of one user go into a prepare before those of others who wait.
COMMANDS_IN_TURN: Final = 1_024
# So many bytes take as much of a turn as a command: a prepare full of either takes all of it.
TURN_BYTES_PER_COMMAND: Final = PREPARE_BODY_BYTES_MAX // PREPARE_COMMANDS_MAX
# Write quotas of one user, unless flags say otherwise: more than a cluster takes of one user alone,
# so that nobody is slowed down who disturbs nobody. Those of all together are off.
QUOTA_COMMANDS_PER_USER: Final = 1_000_000
QUOTA_BYTES_PER_USER: Final = 128 * MIB
QUOTA_BURST_MS: Final = 2_000
# Users whose quota is kept exactly; beyond it those are forgotten who were heard longest ago.
QUOTA_USERS_MAX: Final = 10_000
# After so long whoever is beyond a share may have room again.
SHARE_RETRY_DELAY_MS: Final = 100
REPLIES_RETRY_DELAY_MS: Final = 1_000
SESSION_NONCE_BYTES: Final = 16
SESSION_IDLE_TIMEOUT_MS: Final = 600_000
# A user with as many sessions as one may have gets another one in place of one that was unused for
# so long and has no open stream.
SESSION_SPARE_IDLE_MS: Final = 60_000
# Digest of a request's content, logged with it and kept with its reply: enough that no two requests
# of one session are taken for one another, even by a client that tries.
FINGERPRINT_BYTES: Final = 16

# --- Identity ---
CLUSTER_ID_BYTES: Final = 16
BOOT_NONCE_BYTES: Final = 16
CLUSTER_KEY_BYTES: Final = 32
REPLICAS_MAX: Final = 6
# Replicas without a vote, beside those.
STANDBYS_MAX: Final = 6
# The highest level that this build knows, and at which it bootstraps clusters. What is in force is
# in the header of every log entry, and is what a handler is told (`Call.feature_level`).
FEATURE_LEVEL_MAX: Final = 3
# From this level on commands are charged for what they cost, and refusals are logged without prose.
FEATURE_LEVEL_BOUNDED: Final = 2
# From this level on the cluster can be given a description.
FEATURE_LEVEL_DESCRIPTION: Final = 3
# What the level of descriptions says of their size, for good: another size needs another level.
DESCRIPTION_BYTES_MAX: Final = 256

# --- Time ---
READ_DEADLINE_MS: Final = 5_000
# A unary command without an answer: its caller is told that the outcome is unknown.
COMMAND_DEADLINE_MS: Final = 30_000
# Whether a service lives: its connection is asked so often, and given up when it is silent for so
# long; what its machine is busy with makes no difference.
STAGE_PING_MS: Final = 500
STAGE_PING_TIMEOUT_MS: Final = 1_500
# ... over a network, where a sign of life waits behind what was sent before it.
STAGE_NETWORK_PING_TIMEOUT_MS: Final = 10_000
# Sent to a service and not answered; one message may be larger, alone. A network that carries 1 MiB
# in a second has signs of life arrive in time behind it.
STAGE_UNANSWERED_BYTES_MAX: Final = 4 * MIB
# A service greets a coordinator within this.
STAGE_TIMEOUT_MS: Final = STAGE_PING_MS + STAGE_PING_TIMEOUT_MS
# A service that lives and has been at one batch for so long is told of, and waited for.
STAGE_BUSY_MS: Final = 5_000
TICK_MS: Final = 10
HEARTBEAT_MS: Final = 50
ACCESS_TOKEN_LIFETIME_US: Final = 3_600_000_000
# Failed logins within a minute: of one name from one address; from one address; for one name from
# all addresses together. Who logged in from an address lately is bound by the first alone.
LOGIN_FAILURES_PER_MINUTE_MAX: Final = 5
LOGIN_FAILURES_PER_ADDRESS_MAX: Final = 60
LOGIN_FAILURES_PER_NAME_MAX: Final = 120

# --- Credentials ---
# Set in the stamp of credentials that a personal access token got; the rest is the revision.
TOKEN_STAMP: Final = 1 << 63
# Commands of one request that must be prepared by their owner before they are logged.
NORMALIZED_COMMANDS_MAX: Final = 128
# Of these, so many are prepared at a time: what one wait must be long enough for.
NORMALIZED_TOGETHER_MAX: Final = 16
# Passwords that wait to be hashed, of one user and in all.
HASHES_WAITING_PER_USER_MAX: Final = 256
HASHES_WAITING_MAX: Final = 4_096
# Logins that wait to be verified: of one address, of those who logged in lately, of all others.
LOGINS_WAITING_PER_ADDRESS_MAX: Final = 32
LOGINS_WAITING_TRUSTED_MAX: Final = 256
LOGINS_WAITING_MAX: Final = 256
# Pairs of address and user that logged in lately.
LOGINS_REMEMBERED_MAX: Final = 65_536
LOGIN_REMEMBERED_US: Final = 86_400_000_000

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
# All metadata of one call. Ours takes less than 1 KiB; the rest is for what proxies add.
METADATA_BYTES_MAX: Final = 16 * KIB
# Submit streams, of one user and in all: some for each session, and some for reads alone.
SUBMIT_STREAMS_PER_USER_MAX: Final = 4 * SESSIONS_PER_USER_MAX
SUBMIT_STREAMS_MAX: Final = 16_384
# The first message of a stream, and the reading of an answer that is ready, take no longer.
STREAM_OPENING_TIMEOUT_MS: Final = 10_000
ANSWER_READING_TIMEOUT_MS: Final = 20_000
SNAPSHOT_READING_TIMEOUT_MS: Final = 120_000
# A connection without a call for so long is closed; clients open another one when they need it.
CONNECTION_IDLE_TIMEOUT_MS: Final = 900_000
HANDSHAKE_TIMEOUT_MS: Final = 10_000
# Connections of clients in all; each costs about 18 KiB. Further ones are closed at once.
CONNECTIONS_MAX: Final = 20_000
# Open files of a coordinator: connections above all.
OPEN_FILES_MAX: Final = 65_536
# Downloads and verifications of snapshots by one user; fewer than there may be in all.
SNAPSHOT_STREAMS_PER_USER_MAX: Final = 2
# Calls of GetStatus that wait for the digests of all stages, which are found once for all of them.
STATUS_DIGESTS_PER_USER_MAX: Final = 16
STATUS_DIGESTS_MAX: Final = 256

# --- Replication (coordinator.vsr) ---
PREPARE_RESEND_MS: Final = 250
BOOTSTRAP_QUERY_MS: Final = 500
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
# And one whose disk has not finished a write for so long. Slow disks take tenths of a second.
DISK_STALL_MS: Final = 3_000
# Committed entries asked for in one message.
CATCH_UP_OPS: Final = 16
# Retain covered log for replicas heard from within this time, up to this many bytes.
RETAIN_FOR_BACKUP_MS: Final = 60_000
RETAIN_FOR_BACKUP_BYTES_MAX: Final = 64 * MIB
# A replica further behind than this does not lead the next view.
FORFEIT_LAG_OPS: Final = 64
READ_INDEXES_WAITING_MAX: Final = 65_536
# Reads that share a message to a stage. Any one read fits: it came in one message itself.
READS_TOGETHER_MAX: Final = REQUEST_COMMANDS_MAX
READS_TOGETHER_BYTES_MAX: Final = 2 * MESSAGE_BYTES_MAX

# --- Cost at log order (services.runtime.cost); a row is about a microsecond of work ---
# What each command may touch and answer, whatever else is in its prepare.
COMMAND_FREE_ROWS: Final = 16
ANSWER_FREE_BYTES: Final = 128
# What one command, and beyond the free rows all commands of a prepare, may touch at one stage.
COMMAND_ROWS_MAX: Final = 262_144
PREPARE_ROWS_MAX: Final = 262_144
# What effects of a prepare may touch at one stage before the rest is put off, and so internal
# commands; what one step of the work that was put off may touch.
PREPARE_CASCADE_ROWS_MAX: Final = 131_072
PREPARE_CHORE_ROWS_MAX: Final = 131_072
SWEEP_ROWS_MAX: Final = 32_768
# How many times the rows there are for entries of levels before FEATURE_LEVEL_BOUNDED.
UNBOUNDED_LEVEL_POOLS: Final = 8
# Beyond the free bytes, all answers and refusals of a prepare at one stage.
PREPARE_ANSWERS_BYTES_MAX: Final = 512 * KIB
# What an effect costs at the stages that hear of it, in rows of the command that emits it.
EFFECT_ROWS: Final = 4
PARTITIONS_CHANGED_ROWS: Final = 512
# Runs of partitions that were created together.
PARTITION_RUNS_PER_TOPIC_MAX: Final = 16_384
# Partitions that a heartbeat tells; a member that has more reads them page by page.
HEARTBEAT_PARTITIONS_MAX: Final = 16_384
# Partitions in one page of SyncConsumerGroup, and in all members of one page.
PARTITIONS_PAGE_MAX: Final = 100_000

# --- Reads that wait (coordinator.replica) ---
# Reads of one caller that were not answered yet, and what all of them, or all of one caller, hold.
READS_WAITING_PER_CALLER_MAX: Final = 8_192
READS_WAITING_BYTES_MAX: Final = 256 * MIB
READS_WAITING_PER_CALLER_BYTES_MAX: Final = 32 * MIB
# Groups of reads on their way to the same stages. What comes meanwhile gathers.
READ_GROUPS_IN_FLIGHT_MAX: Final = 2
# Calls in a group: fewer once a stage cannot do them in one slice.
READ_GROUP_CALLS_MIN: Final = 8
READ_GROUP_CALLS_MAX: Final = 1_024

# --- Domain services (services.runtime) ---
# What reads of one batch take of a machine before commands are let in. The first is done anyway.
READ_SLICE_US: Final = 20_000
# What one read may take, of the machine's time; its calls past that are refused.
READ_TIME_MAX_MS: Final = 250
READ_RETRY_DELAY_MS: Final = 1_000
# What refusing one call takes of an answer, at most.
READ_REFUSAL_BYTES: Final = 128
# Walks over a whole state for its digest, one of them under way. Each holds a copy of references.
DIGESTS_WAITING_MAX: Final = 4
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
