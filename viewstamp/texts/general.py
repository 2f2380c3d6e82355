"""A general text of each reason, for answers without the details that its own text needs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from viewstamp.api.errors.v1.errors_pb2 import Reason

GENERAL: Final[Mapping[int, str]] = MappingProxyType(
    {
        Reason.REASON_USER_NOT_FOUND: "there is no such user, or you may not see it",
        Reason.REASON_STREAM_NOT_FOUND: "there is no such stream, or you may not see it",
        Reason.REASON_TOPIC_NOT_FOUND: "there is no such topic, or you may not see it",
        Reason.REASON_PARTITION_NOT_FOUND: "the topic has no partition of that number",
        Reason.REASON_GROUP_NOT_FOUND: "there is no such consumer group on the topic",
        Reason.REASON_TOKEN_NOT_FOUND: "there is no personal access token of that name",
        Reason.REASON_SNAPSHOT_NOT_FOUND: "there is no such snapshot",
        Reason.REASON_BROKER_NOT_FOUND: "there is no such broker",
        Reason.REASON_REPLICA_NOT_FOUND: "the cluster has no replica of that id",
        Reason.REASON_USER_EXISTS: "the username is taken: choose another",
        Reason.REASON_STREAM_EXISTS: "the name of the stream is taken: choose another",
        Reason.REASON_TOPIC_EXISTS: "the name of the topic is taken: choose another",
        Reason.REASON_GROUP_EXISTS: "the name of the consumer group is taken: choose another",
        Reason.REASON_TOKEN_EXISTS: "there is a token of that name: choose another name",
        Reason.REASON_INVALID_USERNAME: "the username is not valid",
        Reason.REASON_INVALID_PASSWORD: "the password is not valid",
        Reason.REASON_INVALID_STREAM_NAME: "the name of the stream is not valid",
        Reason.REASON_INVALID_TOPIC_NAME: "the name of the topic is not valid",
        Reason.REASON_INVALID_GROUP_NAME: "the name of the consumer group is not valid",
        Reason.REASON_INVALID_TOKEN_NAME: "the name of the token is not valid",
        Reason.REASON_INVALID_TOKEN_EXPIRY: "the expiry is not in the future",
        Reason.REASON_INVALID_PARTITIONS_COUNT: "the number of partitions is not allowed",
        Reason.REASON_INVALID_TOPIC_SIZE: "the maximal size of the topic is less than one segment",
        Reason.REASON_UNSUPPORTED_OPTION: "the option cannot be set here",
        Reason.REASON_INVALID_OPTION: "the value of the option is not allowed",
        Reason.REASON_MALFORMED_REQUEST: "the request is malformed",
        Reason.REASON_INVALID_BROKER: "no broker can be what it says of itself",
        Reason.REASON_COMMAND_TOO_LARGE: "the request is too large: split it",
        Reason.REASON_STREAM_LIMIT: "the cluster holds its maximum of streams: delete one first",
        Reason.REASON_TOPIC_LIMIT: "the stream holds its maximum of topics: delete one first",
        Reason.REASON_PARTITION_LIMIT: "the topic cannot hold so many partitions",
        Reason.REASON_REPLICA_LIMIT: "the cluster has its maximum of replicas: remove one first",
        Reason.REASON_BROKER_LIMIT: "the cluster has its maximum of brokers: unregister one first",
        Reason.REASON_TOKEN_LIMIT: "the user has the maximum of tokens: delete one first",
        Reason.REASON_SESSION_LIMIT: "the maximum of sessions is reached: end one first",
        Reason.REASON_QUOTA_EXCEEDED: (
            "the caller sends more than its quota allows: try again later"
        ),
        Reason.REASON_REQUEST_NUMBER_REUSED: (
            "the request number was used for another request: use a new number for each request"
        ),
        Reason.REASON_STREAM_REPLACED: ("the session has opened a newer stream: use the newer one"),
        Reason.REASON_OUTCOME_UNKNOWN: (
            "the command may have taken effect or not: check before you send it again"
        ),
        Reason.REASON_NO_SPACE: "the cluster is read-only until disk space returns",
        Reason.REASON_COST_EXCEEDED: (
            "the command changes more rows than one command may, or than the commands of one batch "
            "may together: split the command, or send it again later"
        ),
        Reason.REASON_ANSWER_TOO_LARGE: (
            "the answer is too large: send fewer commands at once, or request less"
        ),
        Reason.REASON_UNAUTHENTICATED: (
            "the credentials are not valid, or no longer valid: log in again"
        ),
        Reason.REASON_INVALID_CREDENTIALS: "the username or the password is wrong",
        Reason.REASON_SESSION_EVICTED: "the session has ended: register a new one",
        Reason.REASON_PERMISSION_DENIED: "the caller lacks the permission to do this",
        Reason.REASON_CANNOT_DELETE_ROOT: "the root user cannot be deleted",
        Reason.REASON_CANNOT_CHANGE_ROOT_PERMISSIONS: "the root user always has all permissions",
        Reason.REASON_SESSION_REQUIRED: "the request needs a session: register one",
        Reason.REASON_SNAPSHOT_IN_PROGRESS: (
            "a snapshot is under way: wait until it completes or fails"
        ),
        Reason.REASON_SNAPSHOT_IN_USE: "the snapshot is the last completed one, or is under way",
        Reason.REASON_NO_OTHER_REPLICA: (
            "the cluster has only one replica: no other replica can take over"
        ),
        Reason.REASON_REPLICA_NOT_READY: (
            "the standby cannot be given a vote yet: wait until it is heard and up to date"
        ),
        Reason.REASON_QUORUM_AT_RISK: (
            "the voters that are there would not be a quorum: start those that are away first"
        ),
        Reason.REASON_FEATURE_LEVEL_REQUIRED: (
            "the method needs a higher feature level: upgrade every replica, and raise the level"
        ),
        Reason.REASON_FEATURE_LEVEL_UNSUPPORTED: (
            "not every replica is known to support the feature level: upgrade all "
            "replicas, and try again"
        ),
        Reason.REASON_FEATURE_LEVEL_MISMATCH: (
            "another feature level is in force: read the level in force, and raise it by one"
        ),
        Reason.REASON_NOT_A_MEMBER: "the session is not a member of the group: join it first",
        Reason.REASON_PARTITION_NOT_OWNED: "another member owns the partition",
        Reason.REASON_FENCED_MEMBER_EPOCH: "the member's epoch is outdated: give up all partitions",
        Reason.REASON_UNRELEASED_INSTANCE_ID: "another member of the group has the instance id",
        Reason.REASON_GROUP_NOT_EMPTY: "the group has members",
        Reason.REASON_FENCED_BROKER_EPOCH: (
            "the broker's epoch is over: stop to lead, and register again"
        ),
        Reason.REASON_NOT_LEADER: "the broker does not lead the partition, or has not seen it yet",
        Reason.REASON_NOT_ENOUGH_BROKERS: "there are fewer brokers than the topic has replicas",
        Reason.REASON_BROKER_IN_USE: "the broker has replicas: place them on other brokers first",
        Reason.REASON_REPLICAS_NOT_IN_SYNC: (
            "none of these brokers has all that was acknowledged: keep one that is in sync"
        ),
        Reason.REASON_OFFSET_OUT_OF_RANGE: "the offset lies outside what the partition holds",
        Reason.REASON_REVISION_MISMATCH: (
            "the entity was modified in the meantime: read it again and decide again"
        ),
        Reason.REASON_REQUEST_TOO_OLD: (
            "the request was answered before, and its reply is no longer kept"
        ),
        Reason.REASON_REQUEST_GAP: "the request skips a number: resend the requests before it",
        Reason.REASON_ACCESS_CHANGED: "what the caller may do has changed: watch again",
        Reason.REASON_REVISION_COMPACTED: "the revision is older than the oldest one that is kept",
        Reason.REASON_NOT_PRIMARY: "this replica is not the primary: send commands to the primary",
        Reason.REASON_VIEW_CHANGE: "the cluster is choosing a primary: try again",
        Reason.REASON_DOMAIN_RESTARTING: "the service of this domain is restarting: try again",
        Reason.REASON_NO_QUORUM: "too few replicas answer",
        Reason.REASON_OVERLOADED: "the limit of requests under way is reached: try again",
        Reason.REASON_READ_DEADLINE: "the read was not answered in time: try again",
        Reason.REASON_REPLICA_DIVERGED: "this replica's state differs from the majority's",
        Reason.REASON_SNAPSHOT_DAMAGED: "no copy of a file of the snapshot is intact here",
        Reason.REASON_UNIMPLEMENTED: "no service of this cluster serves the method",
        Reason.REASON_INTERNAL: (
            "the service has a defect: nothing was changed, and an alarm was raised"
        ),
    }
)
