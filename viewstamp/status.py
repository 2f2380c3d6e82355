"""Refusals as gRPC statuses with google.rpc.ErrorInfo, and back."""

from __future__ import annotations

from typing import Final

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal, iggy_code, retry_delay_ms, status_code
from viewstamp.limits import REFUSAL_METADATA_BYTES_MAX, REFUSAL_TEXT_BYTES_MAX
from viewstamp.texts import clipped

ERROR_DOMAIN: Final = "viewstamp"
STATUS_DETAILS_KEY: Final = "grpc-status-details-bin"
# Keys of the metadata beside the details.
CASE_KEY: Final = "case"
IGGY_CODE_KEY: Final = "iggy_code"

_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


def grpc_code(refusal: Refusal) -> grpc.StatusCode:
    """Return the gRPC status code of a refusal."""
    return _CODES[status_code(refusal.reason)]


def trailing_details(refusal: Refusal) -> tuple[str, bytes]:
    """Return the trailing metadata entry that carries the refusal as a google.rpc.Status."""
    info = error_details_pb2.ErrorInfo(
        reason=refusal.name, domain=ERROR_DOMAIN, metadata=_metadata(refusal)
    )
    status = status_pb2.Status(code=status_code(refusal.reason), message=status_message(refusal))
    # Equal refusals are equal bytes, which our transport and those of others remember.
    status.details.add().Pack(info, deterministic=True)
    delay_ms = retry_delay_ms(refusal)
    if delay_ms:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(delay_ms)
        status.details.add().Pack(retry)
    return STATUS_DETAILS_KEY, status.SerializeToString()


def status_message(refusal: Refusal) -> str:
    """Return the refusal's message, short enough for the metadata of every client."""
    return clipped(refusal.message, REFUSAL_TEXT_BYTES_MAX)


def refusal_of(error: grpc.RpcError) -> Refusal | None:
    """Return the refusal a failed call carries, or None if the status is not one of ours.

    A reason that only newer builds know comes as REASON_UNSPECIFIED.
    """
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    for detail in status.details if status is not None else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == ERROR_DOMAIN:
            return _refusal_in(info, status.message)
    return None


def _refusal_in(info: error_details_pb2.ErrorInfo, message: str) -> Refusal:
    name = "REASON_" + info.reason
    reason = Reason.Value(name) if name in Reason.keys() else Reason.REASON_UNSPECIFIED  # noqa: SIM118
    refusal = Refusal(reason, message, **dict(info.metadata))
    refusal.case = refusal.details.pop(CASE_KEY, "")
    return refusal


def _metadata(refusal: Refusal) -> dict[str, str]:
    """Return as many details, from the first on, as fit into the metadata of every client."""
    metadata = {CASE_KEY: refusal.case} if refusal.case else {}
    number = iggy_code(refusal.reason)
    if number is not None and IGGY_CODE_KEY not in refusal.details:  # a machine may know better
        metadata[IGGY_CODE_KEY] = str(number)
    room_bytes = REFUSAL_METADATA_BYTES_MAX
    for key, value in refusal.details.items():
        room_bytes -= len(key.encode()) + len(value.encode())
        if room_bytes < 0:
            break
        metadata[key] = value
    return metadata
