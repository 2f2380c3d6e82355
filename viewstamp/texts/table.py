"""The text of each refusal that machines and the mux decide, by reason and case.

Raise `Refusal.of(reason, key=value)`, or `Refusal.of(reason, "case", key=value)` where a reason
has several texts, and add a row here. A template names details in braces: `{limit}` as it is,
`{name!n}` as a name, which is quoted, `{any_of!o}` as alternatives, which are joined by "or". Words
may change at any time. Reasons, cases and details are kept in replies, which are state: they change
with a feature level alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.texts.broker_texts import BROKERS

Texts = Mapping[tuple[int, str], str]

# What `viewstamp.names` checks, by reason.
_NAMES: Final = {
    Reason.REASON_INVALID_USERNAME: "username",
    Reason.REASON_INVALID_PASSWORD: "password",
    Reason.REASON_INVALID_STREAM_NAME: "stream name",
    Reason.REASON_INVALID_TOPIC_NAME: "topic name",
    Reason.REASON_INVALID_GROUP_NAME: "group name",
    Reason.REASON_INVALID_TOKEN_NAME: "token name",
    Reason.REASON_INVALID_OPTION: "{field}",
    Reason.REASON_INVALID_BROKER: "broker's {field}",
}
_NAME_TEXTS: Final = {
    "control_character": (
        "has the control character {code_point} at position {position}; "
        "use a name without control characters (U+0000 to U+001F, U+007F to U+009F)."
    ),
    "length": "has {bytes} bytes; it must have {bytes_min} to {bytes_max} bytes of UTF-8.",
    "encoding": (
        "is not valid UTF-8 at position {position} (a lone surrogate); "
        "use characters that UTF-8 can encode."
    ),
}
NAMES: Final[Texts] = {
    (reason, case): f"The {name} {text}"
    for reason, name in _NAMES.items()
    for case, text in _NAME_TEXTS.items()
}

STREAMS: Final[Texts] = {
    (Reason.REASON_PERMISSION_DENIED, "here"): (
        "User {user_id} lacks the permission {permission} here."
    ),
    (Reason.REASON_STREAM_NOT_FOUND, ""): "There is no stream {stream!n}, or you may not see it.",
    (Reason.REASON_TOPIC_NOT_FOUND, ""): (
        "There is no topic {topic!n} in stream {stream!n}, or you may not see it."
    ),
    (Reason.REASON_STREAM_EXISTS, ""): (
        "There is a stream {stream!n} already; choose another name."
    ),
    (Reason.REASON_TOPIC_EXISTS, ""): (
        "There is a topic {topic!n} in stream {stream!n} already; choose another name."
    ),
    (Reason.REASON_REVISION_MISMATCH, "stream"): (
        "The stream {stream!n} was modified at revision {modified_revision}, not "
        "{expected_revision}; read it again."
    ),
    (Reason.REASON_REVISION_MISMATCH, "topic"): (
        "The topic {topic!n} was modified at revision {modified_revision}, not "
        "{expected_revision}; read it again."
    ),
    (Reason.REASON_STREAM_LIMIT, ""): (
        "There are {limit} streams, which is the maximum; delete one first."
    ),
    (Reason.REASON_TOPIC_LIMIT, ""): (
        "Stream {stream!n} holds {limit} topics, which is the maximum; delete one first."
    ),
    (Reason.REASON_PARTITION_LIMIT, ""): (
        "Topic {topic!n} has {existing} partitions and cannot get {partitions_count} more; it may "
        "hold {limit}."
    ),
    (Reason.REASON_PARTITION_NOT_FOUND, "beyond"): (
        "Topic {topic!n} has no partition {partition}; it has {existing}, numbered from 0."
    ),
    (Reason.REASON_MALFORMED_REQUEST, "offsets_count"): (
        "The request has offsets of {offsets_count} partitions; it must be 1 to {limit}."
    ),
    (Reason.REASON_OFFSET_OUT_OF_RANGE, "impossible"): (
        "{offset} is no offset of a message; the highest is {limit}."
    ),
    (Reason.REASON_INVALID_PARTITIONS_COUNT, ""): (
        "The request asks for {partitions_count} partitions; {lowest} to {highest} are allowed."
    ),
    (Reason.REASON_INVALID_PARTITIONS_COUNT, "more_than_exist"): (
        "The request deletes {partitions_count} partitions of topic {topic!n}, which has "
        "{existing}."
    ),
    (Reason.REASON_UNSUPPORTED_OPTION, "fixed"): (
        "The option {option} is fixed at creation; leave it out of an update."
    ),
    (Reason.REASON_UNSUPPORTED_OPTION, "unknown"): (
        "Topics have no option with field number {option}; use those of streams.v1.TopicOptions."
    ),
    (Reason.REASON_INVALID_OPTION, "not_a_multiple"): (
        "The option {option} is {value}; it must be a multiple of {multiple}."
    ),
    (Reason.REASON_INVALID_OPTION, "out_of_range"): (
        "The option {option} is {value}; it must be {lowest} to {highest}."
    ),
    (Reason.REASON_INVALID_TOPIC_SIZE, ""): (
        "The maximal topic size of {max_topic_size_bytes} bytes is smaller than one segment of "
        "{segment_size_bytes} bytes; use 0 for no limit, or at least one segment."
    ),
}

USERS: Final[Texts] = {
    (Reason.REASON_UNAUTHENTICATED, ""): (
        "The caller is unknown or inactive, or its credentials have changed; log in again."
    ),
    (Reason.REASON_PERMISSION_DENIED, "global"): (
        "User {user} lacks the global permission {any_of!o}; somebody with manage_users can grant "
        "it."
    ),
    (Reason.REASON_PERMISSION_DENIED, "root"): (
        "Only root can change root's name, credentials and sessions; you are user {user}."
    ),
    (Reason.REASON_USER_NOT_FOUND, ""): (
        "There is no user {user!n}; ListUsers shows those that exist."
    ),
    (Reason.REASON_USER_EXISTS, ""): "The username {username!n} is taken; choose another.",
    (Reason.REASON_MALFORMED_REQUEST, "user_status"): (
        "{status} is not a user status; use USER_STATUS_ACTIVE (1) or USER_STATUS_INACTIVE (2)."
    ),
    (Reason.REASON_INVALID_CREDENTIALS, "login"): (
        "The username or the password is wrong, or the user is inactive; "
        "log in with the credentials of an active user."
    ),
    (Reason.REASON_INVALID_CREDENTIALS, "personal_access_token"): (
        "The personal access token is wrong, expired or deleted, or its user is inactive; "
        "use one that CreatePersonalAccessToken returned and that still exists."
    ),
    (Reason.REASON_INVALID_CREDENTIALS, "current_password_wrong"): (
        "The current password is wrong; send `current_password` as it is now."
    ),
    (Reason.REASON_INVALID_CREDENTIALS, "current_password_not_verified"): (
        "The current password was not verified, or changed meanwhile; "
        "send `current_password` as it is now."
    ),
    (Reason.REASON_MALFORMED_REQUEST, "set_by_the_cluster"): (
        "The request sets `{field}`, which only the cluster may set; leave it out."
    ),
    (Reason.REASON_MALFORMED_REQUEST, "no_root_password_hash"): (
        "The cluster cannot be bootstrapped without `{field}`; set it to the argon2id hash of the "
        "generated password."
    ),
    (Reason.REASON_MALFORMED_REQUEST, "password_not_hashed"): (
        "The password was not hashed before the command was sequenced; "
        "send the command through the gateway."
    ),
    (Reason.REASON_MALFORMED_REQUEST, "token_hash_length"): (
        "The token hash has {bytes} bytes, not {bytes_due}; "
        "send the command through the gateway, which makes the hash."
    ),
    (Reason.REASON_MALFORMED_REQUEST, "token_hash_taken"): (
        "The token hash already belongs to another token; send the command again, so that the "
        "gateway makes another token."
    ),
    (Reason.REASON_MALFORMED_REQUEST, "unnamed_in_permissions"): (
        "The permissions have an entry that names no {field}; set `{field}` to an id or a name."
    ),
    (Reason.REASON_STREAM_NOT_FOUND, "in_permissions"): (
        "The permissions name the stream {stream!n}, which does not exist; name streams that exist."
    ),
    (Reason.REASON_TOPIC_NOT_FOUND, "in_permissions"): (
        "The permissions name the topic {topic!n} in stream {stream}, which does not exist; "
        "name topics that exist."
    ),
    (Reason.REASON_CANNOT_DELETE_ROOT, ""): (
        "User {user} is root, who cannot be deleted; name another user."
    ),
    (Reason.REASON_CANNOT_CHANGE_ROOT_PERMISSIONS, ""): (
        "User {user} is root. Root always has all permissions and cannot be deactivated; name "
        "another user."
    ),
    (Reason.REASON_REVISION_MISMATCH, "user"): (
        "User {user} was last modified at revision {modified_revision}, not at "
        "{expected_revision} as expected; read the user again and decide again."
    ),
    (Reason.REASON_TOKEN_NOT_FOUND, ""): (
        "There is no personal access token {token!n}; ListPersonalAccessTokens shows those that "
        "exist."
    ),
    (Reason.REASON_REVISION_MISMATCH, "token"): (
        "The personal access token {token!n} is of revision {modified_revision}, not of "
        "{expected_revision}; it was deleted and created again. List the tokens and decide again."
    ),
    (Reason.REASON_TOKEN_EXISTS, ""): (
        "You have a personal access token {token!n} already; choose another name or delete it."
    ),
    (Reason.REASON_TOKEN_LIMIT, ""): (
        "You have {count} personal access tokens; {limit} are allowed. Delete one first."
    ),
    (Reason.REASON_INVALID_TOKEN_EXPIRY, ""): (
        "The expiry {expires_at} is not after {timestamp}, the time of the command; use "
        "microseconds since 1970 in the future, or 0 for never."
    ),
}

GROUPS: Final[Texts] = {
    (Reason.REASON_SESSION_REQUIRED, "member"): (
        "Members of a consumer group are client sessions, and this request has none; register a "
        "session and send the request in it."
    ),
    (Reason.REASON_NOT_A_MEMBER, ""): (
        "Session {session_id} is not a member of consumer group {group_id}; join it first."
    ),
    (Reason.REASON_GROUP_NOT_FOUND, ""): (
        "There is no consumer group {group!n} on topic {topic_id} of stream {stream_id}; list the "
        "topic's groups to see which exist."
    ),
    (Reason.REASON_GROUP_EXISTS, ""): (
        "There is a consumer group {name!n} on topic {topic_id} already; choose another name."
    ),
    (Reason.REASON_REVISION_MISMATCH, "group"): (
        "Consumer group {group_id} was last changed at revision {modified_revision}, not at "
        "{expected_revision}; read it again and decide again."
    ),
    (Reason.REASON_REVISION_MISMATCH, "offsets"): (
        "Offsets of consumer group {group_id} were last changed at revision {modified_revision}, "
        "not at {expected_revision}; fetch them again and decide again."
    ),
    (Reason.REASON_INVALID_OPTION, "assignor"): (
        "There is no assignor {assignor}; choose ASSIGNOR_UNIFORM (1) or ASSIGNOR_RANGE (2)."
    ),
    (Reason.REASON_INVALID_OPTION, "joined_differently"): (
        "Session {session_id} is a member of consumer group {group_id} already, as instance "
        "{instance_id!n} on rack {rack!n}; leave the group before joining it differently."
    ),
    (Reason.REASON_INVALID_OPTION, "keep_place"): (
        "Only a static member keeps its place in consumer group {group_id}; join with an instance "
        "id, or leave without keep_place."
    ),
    (Reason.REASON_INVALID_OPTION, "offsets_retention_ms"): (
        "Offsets may not be kept for {requested} ms; choose {low} to {high}, or 0 to keep them for "
        "ever."
    ),
    (Reason.REASON_INVALID_OPTION, "member_timeout_ms"): (
        "Members may not be silent for {requested} ms; choose {low} to {high}, or 0 for the "
        "default."
    ),
    (Reason.REASON_GROUP_NOT_EMPTY, ""): (
        "Group {group_id} has {members_count} members, which commit its offsets; end them first."
    ),
    (Reason.REASON_PARTITION_NOT_OWNED, ""): (
        "Session {session_id} does not own partition {partition} in group {group_id}; it commits "
        "nothing of this request."
    ),
    (Reason.REASON_OFFSET_OUT_OF_RANGE, "reported"): (
        "Offset {offset} lies outside partition {partition}, which holds {start_offset} to "
        "{end_offset} as far as is known; set allow_out_of_range if it is right."
    ),
    (Reason.REASON_OFFSET_OUT_OF_RANGE, "not_reported"): (
        "Nothing was reported of partition {partition}, so nobody knows its latest offset."
    ),
    (Reason.REASON_INVALID_OPTION, "reset_to"): (
        "`to` is {to}. Offsets are reset to those of the request, with neither `to` nor "
        "`partitions`; or `to` EARLIEST (1), LATEST (2) or, from feature level 8 on, TIME (3) with "
        "`time_us`, without offsets and allow_out_of_range."
    ),
    (Reason.REASON_MALFORMED_REQUEST, "partition_twice"): (
        "The request names a partition twice; each may be there once."
    ),
    (Reason.REASON_UNRELEASED_INSTANCE_ID, ""): (
        "Session {session_id} has the place of instance {instance_id!n} in consumer group "
        "{group_id}; let it leave with keep_place, as the same user, or wait until it is removed "
        "for silence."
    ),
    (Reason.REASON_FENCED_MEMBER_EPOCH, ""): (
        "Session {session_id} names member epoch {epoch} in consumer group {group_id}, where it is "
        "at {member_epoch} (or {previous_member_epoch}, if a reply was lost); give up all "
        "partitions and sync."
    ),
}

COSTS: Final[Texts] = {
    (Reason.REASON_COST_EXCEEDED, "command"): (
        "The command costs {cost} rows, and one command may cost {limit}; split it into several "
        "smaller commands."
    ),
    (Reason.REASON_COST_EXCEEDED, "prepare"): (
        "The command costs {cost} rows, more than the other commands of its batch left of "
        "{limit}; send it again, and send fewer such commands at once."
    ),
    (Reason.REASON_ANSWER_TOO_LARGE, "prepare"): (
        "The answer has {bytes} bytes. All answers of one batch may have {limit} bytes, so nothing "
        "was changed; send the command again, and send fewer such commands at once."
    ),
    (Reason.REASON_PARTITION_LIMIT, "runs"): (
        "Topic {topic!n} got its partitions by {limit} commands, which is the maximum; delete "
        "some partitions, and create more of them with one command."
    ),
}

# What the services' common machinery decides.
RUNTIME: Final[Texts] = {
    (Reason.REASON_MALFORMED_REQUEST, "unnamed"): (
        "The request names no {field}; set `{field}` to an id or a name."
    ),
    (Reason.REASON_MALFORMED_REQUEST, "not_its_message"): (
        "The request is malformed: its bytes are not the request message of the method; send the "
        "protobuf encoding of that message."
    ),
    (Reason.REASON_MALFORMED_REQUEST, "wrong_type"): (
        "the bytes are not a {type}: send its protobuf encoding"
    ),
    (Reason.REASON_MALFORMED_REQUEST, "unframed"): (
        "the span's items are not framed: send 0x0A, length, bytes for each"
    ),
    (Reason.REASON_MALFORMED_REQUEST, "span_count"): (
        "the span claims {claimed} items and holds {found}: send the count that it holds"
    ),
    (Reason.REASON_MALFORMED_REQUEST, "page_size"): (
        "The page size {page_size} is too large; use 1 to {limit}, or 0 for the usual one."
    ),
    (Reason.REASON_MALFORMED_REQUEST, "page_token"): (
        "The page token is malformed; send `next_page_token` of the previous page as it is, or "
        "nothing for the first page."
    ),
    (Reason.REASON_MALFORMED_REQUEST, "page_token_of_another_list"): (
        "The page token does not belong to this list: another method returned it, or {method} "
        "for another parent or filter, or an older build; start again with an empty token."
    ),
    (Reason.REASON_COMMAND_TOO_LARGE, "answers"): (
        "the answers together exceed {limit} bytes: request less at once"
    ),
    (Reason.REASON_OVERLOADED, "partitions_change"): (
        "Group {group_id} has not heard yet of the present partition {partition}, because the "
        "partitions of its topic have just changed; send the request again in {retry_delay_ms} ms."
    ),
    (Reason.REASON_OVERLOADED, "member_leaves"): (
        "Session {session_id} showed no life for too long and is being removed from the group; try "
        "again, and join again once it is no member."
    ),
    (Reason.REASON_OVERLOADED, "reads"): (
        "The calls before this one took {limit_ms} ms together; send fewer calls at once, and send "
        "the rest again in {retry_delay_ms} ms."
    ),
    (Reason.REASON_OVERLOADED, "digests"): (
        "The service is computing {limit} state digests, which is the maximum; try again in "
        "{retry_delay_ms} ms."
    ),
    (Reason.REASON_OVERLOADED, "reads_computed"): (
        "the service is computing {limit} reads, which is the maximum: try again"
    ),
    (Reason.REASON_QUOTA_EXCEEDED, "failed_attempts"): (
        "Too many failed attempts; try again in {retry_delay_ms} ms."
    ),
    (Reason.REASON_QUOTA_EXCEEDED, "waiting"): (
        "Too many such requests are waiting already; try again in {retry_delay_ms} ms."
    ),
    (Reason.REASON_OVERLOADED, "credentials_ahead"): (
        "This replica has not yet applied the revision of your credentials; try again."
    ),
    (Reason.REASON_INTERNAL, ""): (
        "{where} has a defect: nothing was changed, and an alarm was raised"
    ),
}

# What the coordinator decides at log order: sessions, snapshots, transactions.
MUX: Final[Texts] = {
    (Reason.REASON_UNAUTHENTICATED, "credentials_changed"): (
        "credentials of user {user} changed at revision {minimum}; log in again"
    ),
    (Reason.REASON_SESSION_EVICTED, ""): (
        "session {session} has ended or never existed; register a new one"
    ),
    (Reason.REASON_SESSION_REQUIRED, "to_end"): ("the call carried no session that could be ended"),
    (Reason.REASON_PERMISSION_DENIED, "session_of_another"): (
        "session {session} belongs to another user than {user}"
    ),
    (Reason.REASON_PERMISSION_DENIED, "internal"): (
        "code {code} is internal; only the cluster itself may send it"
    ),
    (Reason.REASON_MALFORMED_REQUEST, "nonce"): (
        "the request is malformed: nonce has {bytes} bytes; it must have {bytes_due}"
    ),
    (Reason.REASON_SESSION_LIMIT, "of_user"): (
        "user {user} has {limit} sessions, which is the maximum of one user; end one"
    ),
    (Reason.REASON_SESSION_LIMIT, "of_cluster"): (
        "the cluster has {limit} sessions, which is the maximum; try later"
    ),
    (Reason.REASON_REQUEST_GAP, ""): (
        "request {number} of session {session} skips request {resend_from}; resend from "
        "{resend_from} on"
    ),
    (Reason.REASON_REQUEST_TOO_OLD, ""): (
        "request {number} of session {session} was answered and acknowledged before"
    ),
    (Reason.REASON_REQUEST_NUMBER_REUSED, ""): (
        "session {session} used the number {number} for another request: use a new number for "
        "each request"
    ),
    (Reason.REASON_MALFORMED_REQUEST, "transaction_parts"): (
        "transaction has {parts} parts; 1 to {maximum} are allowed"
    ),
    (Reason.REASON_MALFORMED_REQUEST, "not_a_part"): (
        "code {code} cannot be part of a transaction; only domain commands can"
    ),
    (Reason.REASON_UNIMPLEMENTED, "code"): "no service of this cluster claims code {code}",
    (Reason.REASON_MALFORMED_REQUEST, "keep_last"): (
        "the request is malformed: keep_last is 0; at least 1 must be kept"
    ),
    (Reason.REASON_MALFORMED_REQUEST, "keep_for_ms"): (
        "a snapshot cannot be kept for {requested} ms; choose at most {limit}, or pin it"
    ),
    (Reason.REASON_MALFORMED_REQUEST, "root_length"): (
        "the request is malformed: root has {bytes} bytes; it must have {bytes_due}"
    ),
    (Reason.REASON_MALFORMED_REQUEST, "snapshot_tasks"): (
        "the request is malformed: tasks must be one for each stage, in the order of the stages"
    ),
    (Reason.REASON_MALFORMED_REQUEST, "snapshot_stage"): (
        "the request is malformed: {stage} is not a valid stage of a task"
    ),
    (Reason.REASON_MALFORMED_REQUEST, "retention"): (
        "the request is malformed: retention is {retention}; it must be one of "
        "RETENTION_CLASS_LAST, RETENTION_CLASS_DAILY, RETENTION_CLASS_PINNED"
    ),
    (Reason.REASON_SNAPSHOT_IN_PROGRESS, ""): (
        "snapshot {generation} is under way; wait until it completes or fails"
    ),
    (Reason.REASON_SNAPSHOT_NOT_FOUND, ""): "there is no snapshot {generation}",
    (Reason.REASON_SNAPSHOT_IN_USE, ""): (
        "snapshot {generation} is the last completed one or is under way; it cannot be deleted"
    ),
    (Reason.REASON_REVISION_MISMATCH, "snapshot"): (
        "snapshot {generation} was last changed at revision {modified_revision}, not at "
        "{expected_revision}; read it again"
    ),
    (Reason.REASON_REVISION_MISMATCH, "description"): (
        "the description of the cluster was set at revision {modified_revision}, not "
        "{expected_revision}; read it again"
    ),
    (Reason.REASON_FEATURE_LEVEL_MISMATCH, ""): (
        "the request raises the level from {expected} to {level}, and level {in_force} is in "
        "force; raise the level in force by one"
    ),
}

_ALL: Final = (NAMES, STREAMS, BROKERS, USERS, GROUPS, COSTS, RUNTIME, MUX)
TEXTS: Texts = MappingProxyType({key: text for part in _ALL for key, text in part.items()})
