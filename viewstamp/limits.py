"""Every limit of the system, each with its unit.

Limits that decide how a command is applied are compile-time constants on purpose: an apply that
branches on local configuration forks the replicas.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
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
# The highest offset in a partition: that of a signed number of 64 bits, which clients in all
# languages have.
OFFSET_MAX: Final = (1 << 63) - 1
# Partitions that one command reports offsets of.
OFFSETS_PER_REQUEST_MAX: Final = 16_384
# Consecutive partitions whose offsets are one row of the state, and one entity of a snapshot.
PARTITIONS_PER_OFFSETS_ROW: Final = 128
# By when data was written: so many times are remembered of each such row, so far apart at least.
# They need another level than FEATURE_LEVEL_TIMES if they change, as do the next two.
MARKS_PER_ROW_MAX: Final = 32
MARK_INTERVAL_US: Final = 10_000_000
# A report of lost data leaves so many of the times at which more was reported than is left.
LOWERED_MARKS_MAX: Final = 4
# A report whose time is so far ahead of log time leaves no time behind.
REPORT_AHEAD_US_MAX: Final = 60_000_000
# Partitions on a page of FetchOffsets, FindOffsets, ListWatermarks; ranges of ListPartitions.
OFFSETS_PAGE_MAX: Final = 16_384
REPLICATION_FACTOR_MAX: Final = 255
SEGMENT_SIZE_BYTES_MIN: Final = 1 * MIB
SEGMENT_SIZE_BYTES_MAX: Final = 1024 * MIB
SEGMENT_SIZE_BYTES_MULTIPLE: Final = 512
REVOCATION_TIMEOUT_US: Final = 30_000_000
# A member of a consumer group that shows no life for this long is removed: what a group has that
# names nothing else, and what it may name. Others need another level than FEATURE_LEVEL_MEMBERS.
MEMBER_TIMEOUT_US: Final = 45_000_000
MEMBER_TIMEOUT_MIN_US: Final = 6_000_000
MEMBER_TIMEOUT_MAX_US: Final = 3_600_000_000
# Members are to show life this often, and more often while there is something to come.
MEMBER_HEARTBEAT_MS: Final = 5_000
MEMBER_UNSETTLED_HEARTBEAT_MS: Final = 500
# With so many members that this would be more signs of life in a second, settled ones are to show
# life less often; but each so often that its timeout holds this many signs.
MEMBER_SIGNS_PER_S: Final = 400
MEMBER_SIGNS_PER_TIMEOUT: Final = 3
MEMBER_HEARTBEAT_MAX_MS: Final = 15_000
# The primary looks this often for members and brokers that did not.
MEMBER_CHECK_INTERVAL_MS: Final = 1_000
# How long a group may say that its offsets are kept while it has neither members nor commits.
# Others need another level than FEATURE_LEVEL_RETENTION, as does the step.
OFFSETS_RETENTION_MIN_US: Final = 60_000_000
OFFSETS_RETENTION_MAX_US: Final = 315_360_000_000_000
# Commits to a group without members note only so often that it is in use.
OFFSETS_IDLE_STEP_US: Final = 60_000_000
# A primary holds no look at the offsets of a group for longer than this: for a longer retention it
# is asked for again and again, so that groups which are gone leave nothing behind for years.
OFFSETS_LOOK_US_MAX: Final = 6 * 3_600_000_000
# How long a broker may be silent: what it registers with that names nothing else, and what it may
# name. Others need another level than FEATURE_LEVEL_BROKERS, as do the sizes below.
BROKER_TIMEOUT_US: Final = 9_000_000
BROKER_TIMEOUT_MIN_US: Final = 6_000_000
BROKER_TIMEOUT_MAX_US: Final = 3_600_000_000
BROKERS_MAX: Final = 1_024
BROKER_ENDPOINTS_MAX: Final = 8
# Brokers on one page of ListBrokers: one may take 5 KB.
BROKERS_PAGE_MAX: Final = 500
BROKER_STORAGE_ID_BYTES_MAX: Final = 64
# Brokers that may have a partition: fewer than a topic may ask for while none is registered.
REPLICAS_PER_PARTITION_MAX: Final = 16
# Brokers are to show life this often.
BROKER_HEARTBEAT_MS: Final = 2_000
# Signs of life wait so long for others, to be read together: so many in all, and of one user. What
# comes beyond is read alone, as is a message whose signs have more bytes than this, on average.
MEMBER_GATHERING_MS: Final = 100
SIGNS_TOGETHER_MAX: Final = 512
SIGNS_TOGETHER_PER_USER_MAX: Final = 128
SIGN_BYTES_MAX: Final = 2 * KIB
# So many streams are told of changed places at a time, and then others after a pause.
NOTICES_TOGETHER_MAX: Final = 128
NOTICE_INTERVAL_MS: Final = 50
# Members that a primary looks at in one step, and removes in one step.
MEMBERS_CHECKED_MAX: Final = 4_096
MEMBERS_EXPIRED_MAX: Final = 256

# --- Refusals ---
# One detail of a refusal. Every name that is allowed fits; a longer name stands in a request that
# is refused because of it.
REFUSAL_DETAIL_BYTES_MAX: Final = 256
# One text of a refusal, for people; the gateway or the client makes it: see `viewstamp.texts`.
REFUSAL_TEXT_BYTES_MAX: Final = 1_024
# All details of one refusal in a status. Text and details, escaped and doubled as gRPC does, stay
# below the 8 KiB of trailing metadata that every client takes.
REFUSAL_METADATA_BYTES_MAX: Final = 2 * KIB
# All texts of refusals in one reply to a request of many commands. Further refusals have no text.
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
# The session of callers that have none: it has no window and keeps no replies.
GATEWAY_SESSION_ID: Final = 0

# --- Requests and prepares ---
REQUEST_COMMANDS_MAX: Final = 8190
PREPARE_COMMANDS_MAX: Final = 8190
PREPARE_BODY_BYTES_MAX: Final = 1 * MIB
MESSAGE_BYTES_MAX: Final = 4 * MIB
COMMAND_BYTES_MAX: Final = 256 * KIB
TRANSACTION_PARTS_MAX: Final = 128
# How often one request may pass through the stages. A command that needs the backward effect of an
# earlier one begins another run, and so does a grant between other commands.
REQUEST_RUNS_MAX: Final = 512
# Runs of all requests of one prepare together: as many as one request may have, which is about a
# third of a second of processor time. While so many runs are under way, the next prepare waits.
PREPARE_RUNS_MAX: Final = REQUEST_RUNS_MAX
# A run weighs as much of a share, and of a turn, as this many commands.
COMMANDS_PER_RUN: Final = 64
PIPELINE_PREPARES_MAX: Final = 8
UNAPPLIED_PREPARES_MAX: Final = 16

# --- Sessions ---
SESSION_WINDOW_REQUESTS: Final = 8
SESSIONS_MAX: Final = 65_536
SESSIONS_PER_USER_MAX: Final = 64
# Kept replies that clients have not acknowledged: in all, near the limit, of one user, and of one
# session. The gateway refuses a user beyond the share until the client acknowledges. When all
# replies come near the limit, the cluster ends the largest session of the user who has the most.
SESSION_REPLIES_BYTES_MAX: Final = 256 * MIB
SESSION_REPLIES_BYTES_NEAR: Final = SESSION_REPLIES_BYTES_MAX // 8 * 7
SESSION_REPLIES_BYTES_PER_USER_MAX: Final = 64 * MIB
SESSION_REPLIES_BYTES_PER_SESSION_MAX: Final = 32 * MIB
# The expected size of a reply that does not exist yet: a fixed part, and a part for each command.
REPLY_BYTES_EXPECTED: Final = 1 * KIB
REPLY_BYTES_EXPECTED_PER_COMMAND: Final = 512
# Commands that were taken in and not answered: of one user, as many as a session may send; their
# bytes; and of all users.
COMMANDS_UNDER_WAY_PER_USER_MAX: Final = 8 * 8190
COMMAND_BYTES_UNDER_WAY_PER_USER_MAX: Final = 16 * MIB
COMMANDS_UNDER_WAY_MAX: Final = 64 * 8190
# Reads that were taken in and not answered, of one user and of all users.
READS_UNDER_WAY_PER_USER_MAX: Final = 4 * 8190
READS_UNDER_WAY_MAX: Final = 32 * 8190
# How many commands of one user go into a prepare before commands of other users who wait.
COMMANDS_IN_TURN: Final = 1_024
# This many bytes take as much of a turn as one command. A prepare full of either takes a whole
# turn.
TURN_BYTES_PER_COMMAND: Final = PREPARE_BODY_BYTES_MAX // PREPARE_COMMANDS_MAX
# Write quotas of one user, unless flags set others: more than a cluster takes from one user, so
# that they slow down only users who disturb others. Quotas of all users together are off.
QUOTA_COMMANDS_PER_USER: Final = 1_000_000
QUOTA_BYTES_PER_USER: Final = 128 * MIB
QUOTA_BURST_MS: Final = 2_000
# Users whose quota the gateway keeps exactly. Beyond this it forgets the users it heard longest
# ago.
QUOTA_USERS_MAX: Final = 10_000
# After this time a user beyond a share may have room again.
SHARE_RETRY_DELAY_MS: Final = 100
REPLIES_RETRY_DELAY_MS: Final = 1_000
SESSION_NONCE_BYTES: Final = 16
SESSION_IDLE_TIMEOUT_MS: Final = 600_000
# A user who has the most sessions allowed gets another one in place of a session that was unused
# for this long and has no open stream.
SESSION_SPARE_IDLE_MS: Final = 60_000
# Digest of a request's content, logged with it and kept with its reply. It is long enough that even
# a client that tries finds no two requests of one session with the same digest.
FINGERPRINT_BYTES: Final = 16

# --- Identity ---
CLUSTER_ID_BYTES: Final = 16
BOOT_NONCE_BYTES: Final = 16
CLUSTER_KEY_BYTES: Final = 32
REPLICAS_MAX: Final = 6
# Replicas without a vote, beside those that vote.
STANDBYS_MAX: Final = 6
# The address of a replica for the others: a name has at most 253 bytes, beside its port.
PEER_ADDRESS_BYTES_MAX: Final = 260
# From this level on commands are charged for what they cost, and refusals are logged without prose.
FEATURE_LEVEL_BOUNDED: Final = 2
# From this level on the cluster can be given a description.
FEATURE_LEVEL_DESCRIPTION: Final = 3
# From this level on a record of the journal names the superblock that it was written under.
FEATURE_LEVEL_NAMED_SUPERBLOCK: Final = 3
# From this level on members of consumer groups that show no life are removed, those that do not
# give partitions up in time are, too, and static members keep their places while they are away.
FEATURE_LEVEL_MEMBERS: Final = 4
# From this level on the data plane reports where the data of partitions begins and ends.
FEATURE_LEVEL_OFFSETS: Final = 5
# From this level on offsets of groups without members may end.
FEATURE_LEVEL_RETENTION: Final = 6
# From this level on brokers register, and partitions have replicas and leaders.
FEATURE_LEVEL_BROKERS: Final = 7
# From this level on a snapshot may be kept until a time.
FEATURE_LEVEL_KEPT_SNAPSHOTS: Final = 7
# From this level on watermarks remember when data ended where, so that offsets are found by time.
FEATURE_LEVEL_TIMES: Final = 8
# From this level on a service reads for several callers at once.
FEATURE_LEVEL_SIGNS: Final = 8
# From this level on changes of tokens and offsets may name the revision that they expect.
FEATURE_LEVEL_GUARDS: Final = 8
# From this level on replicas are added, promoted and removed while the cluster runs.
FEATURE_LEVEL_EPOCHS: Final = 9
# The highest feature level that this build knows, and at which it bootstraps clusters. The header
# of every log entry has the level in force, and handlers get it (`Call.feature_level`).
FEATURE_LEVEL_MAX: Final = max(
    FEATURE_LEVEL_BOUNDED,
    FEATURE_LEVEL_DESCRIPTION,
    FEATURE_LEVEL_NAMED_SUPERBLOCK,
    FEATURE_LEVEL_MEMBERS,
    FEATURE_LEVEL_OFFSETS,
    FEATURE_LEVEL_RETENTION,
    FEATURE_LEVEL_BROKERS,
    FEATURE_LEVEL_KEPT_SNAPSHOTS,
    FEATURE_LEVEL_TIMES,
    FEATURE_LEVEL_SIGNS,
    FEATURE_LEVEL_GUARDS,
    FEATURE_LEVEL_EPOCHS,
)
# Stages (routing.v1.Stage) that came after level 1, and the level from which on a snapshot has a
# section of each. Nothing may change such a stage at a lower level, so a missing section is empty.
SECTION_SINCE_LEVEL: Final[Mapping[int, int]] = MappingProxyType({})
# The size of a description. It belongs to the feature level: another size needs another level.
DESCRIPTION_BYTES_MAX: Final = 256

# --- Time ---
READ_DEADLINE_MS: Final = 5_000
# After this time the caller of a unary command without an answer gets OUTCOME_UNKNOWN.
COMMAND_DEADLINE_MS: Final = 30_000
# The coordinator pings a service this often, and gives the connection up when it is silent for this
# long. The work of the service makes no difference.
STAGE_PING_MS: Final = 500
STAGE_PING_TIMEOUT_MS: Final = 1_500
# The same timeout over a network, where a ping waits behind data that was sent before it.
STAGE_NETWORK_PING_TIMEOUT_MS: Final = 10_000
# Bytes that were sent to a service and not answered; a single message may be larger. On a network
# of 1 MiB/s a ping behind them arrives in time.
STAGE_UNANSWERED_BYTES_MAX: Final = 4 * MIB
# A service must greet a coordinator within this time.
STAGE_TIMEOUT_MS: Final = STAGE_PING_MS + STAGE_PING_TIMEOUT_MS
# After this time at one batch a service that lives causes an alarm; the coordinator waits for it.
STAGE_BUSY_MS: Final = 5_000
TICK_MS: Final = 10
HEARTBEAT_MS: Final = 50
ACCESS_TOKEN_LIFETIME_US: Final = 3_600_000_000
# Failed logins within a minute: of one name from one address; from one address; for one name from
# all addresses. Only the first limit binds a user who logged in from the address lately.
LOGIN_FAILURES_PER_MINUTE_MAX: Final = 5
LOGIN_FAILURES_PER_ADDRESS_MAX: Final = 60
LOGIN_FAILURES_PER_NAME_MAX: Final = 120

# --- Credentials ---
# The bit of a stamp that says that a personal access token got the access token. The other bits are
# the revision of the credentials.
TOKEN_STAMP: Final = 1 << 63
# Commands of one request that a service normalizes before they are logged.
NORMALIZED_COMMANDS_MAX: Final = 128
# How many of these a service normalizes at a time; one wait must be long enough for them.
NORMALIZED_TOGETHER_MAX: Final = 16
# Passwords that wait to be hashed, of one user and of all users.
HASHES_WAITING_PER_USER_MAX: Final = 256
HASHES_WAITING_MAX: Final = 4_096
# Logins that wait to be verified: of one address, of users who logged in lately, of all others.
LOGINS_WAITING_PER_ADDRESS_MAX: Final = 32
LOGINS_WAITING_TRUSTED_MAX: Final = 256
LOGINS_WAITING_MAX: Final = 256
# Pairs of address and user that logged in lately.
LOGINS_REMEMBERED_MAX: Final = 65_536
LOGIN_REMEMBERED_US: Final = 86_400_000_000

# --- Memory ---
ITEM_LOG_BYTES_MAX: Final = 512 * MIB

# When the item log is longer than this, the coordinator begins a snapshot, and the item log begins
# anew.
ITEM_LOG_CUT_BYTES: Final = 256 * MIB

# --- Snapshots ---
SNAPSHOT_COPIES: Final = 3
LAYER_BLOCK_BYTES_MAX: Final = 256 * KIB
# One entity, and a block that holds only this entity.
ENTITY_BYTES_MAX: Final = 16 * MIB
# How long the encoding of a section may keep the event loop at a time.
ENCODE_SLICE_US: Final = 200
SNAPSHOT_DEADLINE_MS: Final = 120_000
SNAPSHOT_COMMANDS: Final = 1_000_000
SNAPSHOT_JOURNAL_BYTES: Final = 256 * MIB
SNAPSHOT_INTERVAL_MS: Final = 3_600_000
SNAPSHOT_KEEP_LAST: Final = 5
SNAPSHOT_KEEP_DAILY: Final = 7
# For how long a command may ask that a snapshot is kept. Another length needs another level than
# FEATURE_LEVEL_KEPT_SNAPSHOTS.
SNAPSHOT_KEPT_FOR_MAX_US: Final = 315_360_000_000_000
# A replica merges a chain of deltas into a new base when the deltas exceed this part of the base,
# and merges deltas with each other when the chain has this many layers.
COMPACT_DELTAS_PERCENT: Final = 50
COMPACT_LAYERS_MAX: Final = 16
# Below this size a replica merges no deltas: merging would cost more at every snapshot than the
# layers cost at a restart.
COMPACT_DELTAS_BYTES_MIN: Final = 256 * KIB
# Reserved in each copy directory: the replica gives this space up when the disk is full.
SNAPSHOT_RESERVE_BYTES_MIN: Final = 64 * MIB
SNAPSHOT_RESERVE_PERCENT: Final = 125

# --- gRPC ---
STREAMS_PER_CONNECTION_MAX: Final = 100
# All metadata of one call. Our client sends less than 1 KiB; proxies may add the rest.
METADATA_BYTES_MAX: Final = 16 * KIB
# Submit streams of one user and of all users: one for each session, and some that only read.
SUBMIT_STREAMS_PER_USER_MAX: Final = 4 * SESSIONS_PER_USER_MAX
SUBMIT_STREAMS_MAX: Final = 16_384
# How long a client may take to send the first message of a stream, to read an answer that is ready,
# and to read a part of a snapshot.
STREAM_OPENING_TIMEOUT_MS: Final = 10_000
ANSWER_READING_TIMEOUT_MS: Final = 20_000
SNAPSHOT_READING_TIMEOUT_MS: Final = 120_000
# The gateway closes a connection without a call for this long. Clients open another one when they
# need it.
CONNECTION_IDLE_TIMEOUT_MS: Final = 900_000
HANDSHAKE_TIMEOUT_MS: Final = 10_000
# Connections of all clients; each costs about 18 KiB. gRPC closes further ones at once.
CONNECTIONS_MAX: Final = 20_000
# Open files of a coordinator, most of them connections.
OPEN_FILES_MAX: Final = 65_536
# Downloads and verifications of snapshots by one user at a time; all users together may have more.
SNAPSHOT_STREAMS_PER_USER_MAX: Final = 2
# Calls of GetStatus that wait for state digests, of one user and of all users. One walk over the
# state answers all of them.
STATUS_DIGESTS_PER_USER_MAX: Final = 16
STATUS_DIGESTS_MAX: Final = 256

# --- Replication (coordinator.vsr) ---
PREPARE_RESEND_MS: Final = 250
BOOTSTRAP_QUERY_MS: Final = 500
# A backup suspects a primary that it has not heard for this long, and up to the jitter longer.
SUSPICION_MS: Final = 250
SUSPICION_JITTER_MS: Final = 150
START_VIEW_CHANGE_RESEND_MS: Final = 100
DO_VIEW_CHANGE_RESEND_MS: Final = 100
START_VIEW_REQUEST_MS: Final = 100
REPAIR_RESEND_MS: Final = 100
READ_INDEX_RESEND_MS: Final = 100
# A view change that takes longer gives way to the next. The time doubles with each view change,
# with jitter, up to the maximum.
VIEW_CHANGE_MS: Final = 500
VIEW_CHANGE_MS_MAX: Final = 8_000
# A primary resigns if no replication quorum has answered it for this long.
ABDICATE_MS: Final = 5_000
# A primary resigns if its stages have applied nothing for this long and another replica is fit to
# lead.
APPLY_STALL_MS: Final = 5_000
# A primary resigns if its disk has not finished a write for this long. Slow disks take tenths of a
# second.
DISK_STALL_MS: Final = 3_000
# Committed entries that a replica asks for in one message.
CATCH_UP_OPS: Final = 16
# Retain covered log for replicas heard from within this time, up to this many bytes.
RETAIN_FOR_BACKUP_MS: Final = 60_000
RETAIN_FOR_BACKUP_BYTES_MAX: Final = 64 * MIB
# A replica that is further behind than this many entries does not lead the next view.
FORFEIT_LAG_OPS: Final = 64
READ_INDEXES_WAITING_MAX: Final = 65_536
# Reads that share a message to a stage. Any single read fits, because it arrived in one message.
READS_TOGETHER_MAX: Final = REQUEST_COMMANDS_MAX
READS_TOGETHER_BYTES_MAX: Final = 2 * MESSAGE_BYTES_MAX

# --- Cost at log order (services.runtime.cost); a row is about a microsecond of work ---
# Rows that each command may touch, and bytes that it may answer, whatever else its prepare holds.
COMMAND_FREE_ROWS: Final = 16
ANSWER_FREE_BYTES: Final = 128
# Rows that one command may touch at one stage, and that all commands of a prepare may touch there
# beyond their free rows.
COMMAND_ROWS_MAX: Final = 262_144
PREPARE_ROWS_MAX: Final = 262_144
# Rows that the effects of a prepare may touch at one stage before the rest becomes chores; rows of
# internal commands of a prepare; rows of one Sweep.
PREPARE_CASCADE_ROWS_MAX: Final = 131_072
PREPARE_CHORE_ROWS_MAX: Final = 131_072
SWEEP_ROWS_MAX: Final = 32_768
# How many times larger the pools of rows are for entries of levels before FEATURE_LEVEL_BOUNDED.
UNBOUNDED_LEVEL_POOLS: Final = 8
# All answers and refusals of a prepare at one stage, beyond the free bytes.
PREPARE_ANSWERS_BYTES_MAX: Final = 512 * KIB
# The price of an effect in rows; the command that emits it pays. PartitionsChanged has a price of
# its own.
EFFECT_ROWS: Final = 4
PARTITIONS_CHANGED_ROWS: Final = 512
# Runs of partitions of one topic; one command creates a run.
PARTITION_RUNS_PER_TOPIC_MAX: Final = 16_384
# Partitions in the answer to a heartbeat. A member that has more reads them in pages.
HEARTBEAT_PARTITIONS_MAX: Final = 16_384
# Partitions in one page of SyncConsumerGroup, and of all members in one page of GetConsumerGroup.
PARTITIONS_PAGE_MAX: Final = 100_000

# --- Reads that wait (coordinator.replica) ---
# Reads of one caller that wait; bytes of all waiting reads; bytes of the waiting reads of one
# caller. Signs of life that are read together count as a caller.
READS_WAITING_PER_CALLER_MAX: Final = 8_192
READS_WAITING_BYTES_MAX: Final = 256 * MIB
READS_WAITING_PER_CALLER_BYTES_MAX: Final = 32 * MIB
# Groups of reads on their way to the same stages. Further reads wait.
READ_GROUPS_IN_FLIGHT_MAX: Final = 2
# Calls in a group of reads: fewest and most. A group becomes smaller when a stage cannot do it in
# one slice.
READ_GROUP_CALLS_MIN: Final = 8
READ_GROUP_CALLS_MAX: Final = 1_024

# --- Domain services (services.runtime) ---
# How long reads of one batch may keep a state machine before commands go on. The first read always
# runs.
READ_SLICE_US: Final = 20_000
# How long one read may keep a state machine. The service refuses its calls past that.
READ_TIME_MAX_MS: Final = 250
READ_RETRY_DELAY_MS: Final = 1_000
# Bytes that the refusal of one call takes in an answer, at most.
READ_REFUSAL_BYTES: Final = 128
# Walks over a whole state for its digest; one is under way, the others wait. Each holds a copy of
# references.
DIGESTS_WAITING_MAX: Final = 4
# Recent changes that each service keeps for watchers, by what rows weigh; the oldest ones go.
CHANGES_KEPT_BYTES_MAX: Final = 64 * MIB
# One page of changes of a service: both bound what a page costs.
CHANGES_PAGE_MAX: Final = 1_024
CHANGES_PAGE_BYTES_MAX: Final = 128 * KIB
# Changes that a page may pass over because nobody watches their streams: what a page costs, too.
CHANGES_PASSED_MAX: Final = 8_192
# Watches of one replica, and of one user there.
WATCHES_MAX: Final = 4_096
WATCHES_PER_USER_MAX: Final = 1_024
# Watches of one replica, and of one user there, that read the services at a time to catch up: each
# may hold all changes of a revision.
CATCH_UPS_MAX: Final = 16
CATCH_UPS_PER_USER_MAX: Final = 4
# What a replica keeps of the joined feed for its watches; who falls behind reads the services.
FEED_BYTES_MAX: Final = 8 * MIB
# The feed reads the services at most this often, and at least if nothing concerns anybody.
FEED_INTERVAL_MS: Final = 5
FEED_INTERVAL_MAX_MS: Final = 20
FEED_RETRY_MS: Final = 100
# How often a watch that asked for it hears how far the feed has come.
WATCH_PROGRESS_MS: Final = 5_000
# One message of a watch.
WATCH_MESSAGE_BYTES_MAX: Final = 256 * KIB
# One Apply message: up to a prepare and its contexts, or the answers of many packed reads.
APPLY_MESSAGE_BYTES_MAX: Final = 64 * MIB
# All answers to reads in one batch. The rest of the message has room for the refusals.
APPLY_ANSWERS_BYTES_MAX: Final = 48 * MIB
APPLY_REPLIES_WAITING_MAX: Final = 64
SERVICE_THREADS_MAX: Final = 4
DEFERRED_QUERIES_MAX: Final = 1024
SERVICE_STOP_GRACE_MS: Final = 1_000
UNIX_SOCKET_PATH_BYTES_MAX: Final = 107
# New objects are walked this often while commands flow. A service that makes 25,000 of them in a
# second stood still for 35 ms when it walked them once a second, which 256 callers noticed.
GARBAGE_INTERVAL_MS: Final = 100
# Without a command for this long all objects are walked, once.
GARBAGE_QUIET_MS: Final = 1_000
