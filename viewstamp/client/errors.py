"""Errors that the client itself raises. A decision of the cluster is a `Refusal`."""

from __future__ import annotations

from viewstamp.client.trouble import Trouble
from viewstamp.errors import Refusal


class ClientError(Exception):
    """The base class of all errors of this library except `Refusal`."""


class CannotConnect(ClientError):  # noqa: N818 - reads as the sentence it is
    """No cluster answered in time; the message names the addresses, the time and the cause.

    `cause` is the cause that the last attempt found.
    """

    def __init__(self, message: str, cause: Trouble = Trouble.OTHER) -> None:
        super().__init__(message)
        self.cause = cause


class ClientClosed(ClientError):  # noqa: N818 - reads as the sentence it is
    """The client was closed. For a command that was sent, the outcome is unknown."""


class TimedOut(ClientError, TimeoutError):  # noqa: N818 - reads as the sentence it is
    """The deadline passed, and the call changed nothing: a read, or a command never sent."""


class OutcomeUnknown(ClientError):  # noqa: N818 - reads as the sentence it is
    """A command was sent and no answer came: it may or may not have taken effect.

    `session_id` and `request_number` (0 if unknown) name the request that carried it.
    """

    def __init__(self, message: str, *, session_id: int, request_number: int) -> None:
        super().__init__(message)
        self.session_id = session_id
        self.request_number = request_number


class StreamBroken(ClientError):  # noqa: N818 - reads as the sentence it is
    """A stream of answers broke off; the answers before are valid."""


class RevisionTooLarge(ClientError):  # noqa: N818 - reads as the sentence it is
    """One revision of a watch has more changes than a watch keeps until it is complete."""


class ProtocolError(ClientError):
    """The cluster gave an answer that the protocol does not allow."""


def with_unknown_outcome(refusal: Refusal, request_number: int) -> Refusal:
    """Return the refusal of a request of which an earlier copy may have taken effect.

    Its details say `outcome` "unknown" and name the `request_number`.
    """
    message = (
        f"{refusal.message} (request number {request_number} had been sent before: whether it "
        "took effect is unknown; read before you repeat it)"
    )
    unknown = Refusal(refusal.reason, message, **refusal.details)
    unknown.case = refusal.case
    return unknown.with_details(outcome="unknown", request_number=request_number)
