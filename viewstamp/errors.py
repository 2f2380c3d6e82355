"""Refusals: why a request failed, in one documented enum.

`Refusal` is raised by machines and shells alike and carried in replies as `errors.v1.Error`.
`viewstamp.status` turns it into a gRPC status and back, `viewstamp.texts` into words for people.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.limits import REFUSAL_DETAIL_BYTES_MAX, REFUSAL_TEXT_BYTES_MAX
from viewstamp.texts import clipped, render

# Numeric values of gRPC status codes (grpc.StatusCode holds the same numbers); named here so that
# pure packages need not import grpc.
UNKNOWN: Final = 2
INVALID_ARGUMENT: Final = 3
DEADLINE_EXCEEDED: Final = 4
NOT_FOUND: Final = 5
ALREADY_EXISTS: Final = 6
PERMISSION_DENIED: Final = 7
RESOURCE_EXHAUSTED: Final = 8
FAILED_PRECONDITION: Final = 9
ABORTED: Final = 10
OUT_OF_RANGE: Final = 11
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14
DATA_LOSS: Final = 15
UNAUTHENTICATED: Final = 16

# reason -> (gRPC status code, Apache Iggy's number for the same failure or None)
REASONS: Final = MappingProxyType(
    {
        Reason.REASON_USER_NOT_FOUND: (NOT_FOUND, 20),
        Reason.REASON_STREAM_NOT_FOUND: (NOT_FOUND, 1009),
        Reason.REASON_TOPIC_NOT_FOUND: (NOT_FOUND, 2010),
        Reason.REASON_PARTITION_NOT_FOUND: (NOT_FOUND, 3007),
        Reason.REASON_GROUP_NOT_FOUND: (NOT_FOUND, 5000),
        Reason.REASON_TOKEN_NOT_FOUND: (NOT_FOUND, None),
        Reason.REASON_SNAPSHOT_NOT_FOUND: (NOT_FOUND, None),
        Reason.REASON_BROKER_NOT_FOUND: (NOT_FOUND, None),
        Reason.REASON_REPLICA_NOT_FOUND: (NOT_FOUND, None),
        Reason.REASON_USER_EXISTS: (ALREADY_EXISTS, 46),
        Reason.REASON_STREAM_EXISTS: (ALREADY_EXISTS, 1012),
        Reason.REASON_TOPIC_EXISTS: (ALREADY_EXISTS, 2013),
        Reason.REASON_GROUP_EXISTS: (ALREADY_EXISTS, 5004),
        Reason.REASON_TOKEN_EXISTS: (ALREADY_EXISTS, 51),
        Reason.REASON_INVALID_USERNAME: (INVALID_ARGUMENT, 43),
        Reason.REASON_INVALID_PASSWORD: (INVALID_ARGUMENT, 44),
        Reason.REASON_INVALID_STREAM_NAME: (INVALID_ARGUMENT, 1013),
        Reason.REASON_INVALID_TOPIC_NAME: (INVALID_ARGUMENT, 2014),
        Reason.REASON_INVALID_GROUP_NAME: (INVALID_ARGUMENT, 5005),
        Reason.REASON_INVALID_TOKEN_NAME: (INVALID_ARGUMENT, 50),
        Reason.REASON_INVALID_TOKEN_EXPIRY: (INVALID_ARGUMENT, 56),
        Reason.REASON_INVALID_PARTITIONS_COUNT: (INVALID_ARGUMENT, 2015),
        Reason.REASON_INVALID_TOPIC_SIZE: (INVALID_ARGUMENT, 1019),
        Reason.REASON_UNSUPPORTED_OPTION: (INVALID_ARGUMENT, 4041),
        Reason.REASON_INVALID_OPTION: (INVALID_ARGUMENT, 4042),
        Reason.REASON_MALFORMED_REQUEST: (INVALID_ARGUMENT, 3),
        Reason.REASON_COMMAND_TOO_LARGE: (INVALID_ARGUMENT, None),
        Reason.REASON_REQUEST_NUMBER_REUSED: (INVALID_ARGUMENT, None),
        Reason.REASON_INVALID_BROKER: (INVALID_ARGUMENT, None),
        Reason.REASON_STREAM_LIMIT: (RESOURCE_EXHAUSTED, 1020),
        Reason.REASON_TOPIC_LIMIT: (RESOURCE_EXHAUSTED, 2021),
        Reason.REASON_PARTITION_LIMIT: (RESOURCE_EXHAUSTED, 3013),
        Reason.REASON_TOKEN_LIMIT: (RESOURCE_EXHAUSTED, 52),
        Reason.REASON_SESSION_LIMIT: (RESOURCE_EXHAUSTED, None),
        Reason.REASON_QUOTA_EXCEEDED: (RESOURCE_EXHAUSTED, None),
        Reason.REASON_NO_SPACE: (RESOURCE_EXHAUSTED, None),
        Reason.REASON_COST_EXCEEDED: (RESOURCE_EXHAUSTED, None),
        Reason.REASON_ANSWER_TOO_LARGE: (RESOURCE_EXHAUSTED, None),
        Reason.REASON_BROKER_LIMIT: (RESOURCE_EXHAUSTED, None),
        Reason.REASON_REPLICA_LIMIT: (RESOURCE_EXHAUSTED, None),
        Reason.REASON_UNAUTHENTICATED: (UNAUTHENTICATED, 40),
        Reason.REASON_INVALID_CREDENTIALS: (UNAUTHENTICATED, 42),
        Reason.REASON_SESSION_EVICTED: (ABORTED, None),
        Reason.REASON_PERMISSION_DENIED: (PERMISSION_DENIED, 41),
        Reason.REASON_CANNOT_DELETE_ROOT: (FAILED_PRECONDITION, 48),
        Reason.REASON_CANNOT_CHANGE_ROOT_PERMISSIONS: (FAILED_PRECONDITION, 49),
        Reason.REASON_SESSION_REQUIRED: (FAILED_PRECONDITION, None),
        Reason.REASON_SNAPSHOT_IN_PROGRESS: (FAILED_PRECONDITION, None),
        Reason.REASON_SNAPSHOT_IN_USE: (FAILED_PRECONDITION, None),
        Reason.REASON_FEATURE_LEVEL_REQUIRED: (FAILED_PRECONDITION, None),
        Reason.REASON_FEATURE_LEVEL_UNSUPPORTED: (FAILED_PRECONDITION, None),
        Reason.REASON_NOT_A_MEMBER: (FAILED_PRECONDITION, 5006),
        Reason.REASON_PARTITION_NOT_OWNED: (FAILED_PRECONDITION, 5009),
        Reason.REASON_FENCED_MEMBER_EPOCH: (FAILED_PRECONDITION, None),
        Reason.REASON_UNRELEASED_INSTANCE_ID: (FAILED_PRECONDITION, None),
        Reason.REASON_GROUP_NOT_EMPTY: (FAILED_PRECONDITION, None),
        Reason.REASON_OFFSET_OUT_OF_RANGE: (FAILED_PRECONDITION, None),
        Reason.REASON_NO_OTHER_REPLICA: (FAILED_PRECONDITION, None),
        Reason.REASON_FENCED_BROKER_EPOCH: (FAILED_PRECONDITION, None),
        Reason.REASON_NOT_LEADER: (FAILED_PRECONDITION, None),
        Reason.REASON_NOT_ENOUGH_BROKERS: (FAILED_PRECONDITION, None),
        Reason.REASON_BROKER_IN_USE: (FAILED_PRECONDITION, None),
        Reason.REASON_REPLICAS_NOT_IN_SYNC: (FAILED_PRECONDITION, None),
        Reason.REASON_REPLICA_NOT_READY: (FAILED_PRECONDITION, None),
        Reason.REASON_QUORUM_AT_RISK: (FAILED_PRECONDITION, None),
        Reason.REASON_REVISION_MISMATCH: (ABORTED, None),
        Reason.REASON_FEATURE_LEVEL_MISMATCH: (ABORTED, None),
        Reason.REASON_REQUEST_TOO_OLD: (ABORTED, 59),
        Reason.REASON_REQUEST_GAP: (ABORTED, None),
        Reason.REASON_STREAM_REPLACED: (ABORTED, None),
        Reason.REASON_ACCESS_CHANGED: (ABORTED, None),
        Reason.REASON_REVISION_COMPACTED: (OUT_OF_RANGE, None),
        Reason.REASON_NOT_PRIMARY: (UNAVAILABLE, 57),
        Reason.REASON_VIEW_CHANGE: (UNAVAILABLE, 58),
        Reason.REASON_DOMAIN_RESTARTING: (UNAVAILABLE, None),
        Reason.REASON_NO_QUORUM: (UNAVAILABLE, None),
        Reason.REASON_OVERLOADED: (UNAVAILABLE, None),
        Reason.REASON_READ_DEADLINE: (DEADLINE_EXCEEDED, None),
        Reason.REASON_OUTCOME_UNKNOWN: (DEADLINE_EXCEEDED, None),
        Reason.REASON_REPLICA_DIVERGED: (DATA_LOSS, None),
        Reason.REASON_SNAPSHOT_DAMAGED: (DATA_LOSS, None),
        Reason.REASON_UNIMPLEMENTED: (UNIMPLEMENTED, None),
        Reason.REASON_INTERNAL: (INTERNAL, None),
    }
)
_OF_A_NEWER_BUILD: Final = (UNKNOWN, None)

# A refusal with this detail may succeed later; its gRPC status also has a google.rpc.RetryInfo.
_RETRY_DELAY_KEY: Final = "retry_delay_ms"
_DELAY_DIGITS_MAX: Final = 9


class Refusal(Exception):  # noqa: N818 - an outcome that machines decide, not a fault
    """A refused request: `reason` and `case` say why, `details` (key -> text) say what it concerns.

    Machines make refusals with `of`, without a message: replicas log data, and `viewstamp.texts`
    has the words. Code at the edge may write a message; the details repeat each dynamic value of
    the message, in order of mention. Details are clipped, so none repeats a long name.
    """

    def __init__(self, reason: Reason.ValueType, message: str, /, **details: object) -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.case = ""
        self.details = {
            key: clipped(str(value), REFUSAL_DETAIL_BYTES_MAX) for key, value in details.items()
        }
        self._message = message

    @classmethod
    def of(cls, reason: Reason.ValueType, case: str = "", /, **details: object) -> Refusal:
        """Return a refusal that may be logged; `viewstamp.texts.table` has its text.

        `case`, in snake_case, tells apart refusals that have the same reason.
        """
        refusal = cls(reason, "", **details)
        refusal.case = case
        return refusal

    def __repr__(self) -> str:
        """Return the reason by its name, because its number says nothing to a reader."""
        return f"Refusal({self.name}, {self.message!r})"

    def __str__(self) -> str:
        return self.message

    @property
    def name(self) -> str:
        """The reason without its prefix, for example `STREAM_NOT_FOUND`."""
        return reason_name(self.reason)

    @property
    def message(self) -> str:
        """The text for people: what was wrong and what would be right; rendered if absent."""
        return self._message or render(self.reason, self.case, self.details)

    def with_details(self, **details: object) -> Refusal:
        """Return the same refusal with further details."""
        refusal = Refusal(self.reason, self._message, **{**self.details, **details})
        refusal.case = self.case
        return refusal

    def to_error(self) -> errors_pb2.Error:
        """Return the refusal as replicas log and keep it: as data, without any message."""
        details = [errors_pb2.ErrorDetail(key=k, value=v) for k, v in self.details.items()]
        return errors_pb2.Error(reason=self.reason, details=details, case=self.case)

    def to_answer(self) -> errors_pb2.Error:
        """Return the refusal as callers get it inside replies: with its message."""
        error = self.to_error()
        error.message = clipped(self.message, REFUSAL_TEXT_BYTES_MAX)
        return error

    @classmethod
    def from_error(cls, error: errors_pb2.Error) -> Refusal:
        """Return the refusal that an error carries; one without a message is rendered here."""
        refusal = cls(error.reason, error.message, **details_of(error))
        refusal.case = error.case
        return refusal


def details_of(error: errors_pb2.Error) -> dict[str, str]:
    """Return the details of an error by key."""
    return {detail.key: detail.value for detail in error.details}


def retry_delay_ms(refusal: Refusal) -> int:
    """Return the time after which there may be room again; 0 if the details do not say it."""
    text = refusal.details.get(_RETRY_DELAY_KEY, "")
    is_number = len(text) <= _DELAY_DIGITS_MAX and text.isascii() and text.isdecimal()
    return int(text) if is_number else 0


def reason_name(reason: Reason.ValueType) -> str:
    """Return the reason's name without its prefix, as ErrorInfo carries it; else its number."""
    known = Reason.DESCRIPTOR.values_by_number.get(reason)
    return str(reason) if known is None else known.name.removeprefix("REASON_")


def status_code(reason: Reason.ValueType) -> int:
    """Return the numeric gRPC status code of a reason; UNKNOWN for those of newer builds."""
    return REASONS.get(reason, _OF_A_NEWER_BUILD)[0]


def iggy_code(reason: Reason.ValueType) -> int | None:
    """Return Apache Iggy's number for the same failure, or None."""
    return REASONS.get(reason, _OF_A_NEWER_BUILD)[1]
