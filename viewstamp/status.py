"""Refusals as gRPC statuses with google.rpc.ErrorInfo, and back."""

from __future__ import annotations

from typing import Final

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal, iggy_code, status_code

ERROR_DOMAIN: Final = "viewstamp"
STATUS_DETAILS_KEY: Final = "grpc-status-details-bin"

_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


def grpc_code(refusal: Refusal) -> grpc.StatusCode:
    """Return the gRPC status code of a refusal."""
    return _CODES[status_code(refusal.reason)]


def trailing_details(refusal: Refusal) -> tuple[str, bytes]:
    """Return the trailing metadata entry that carries the refusal as a google.rpc.Status."""
    metadata = dict(refusal.details)
    number = iggy_code(refusal.reason)
    if number is not None:
        metadata.setdefault("iggy_code", str(number))  # a machine may know a closer one
    info = error_details_pb2.ErrorInfo(reason=refusal.name, domain=ERROR_DOMAIN, metadata=metadata)
    detail = any_pb2.Any()
    detail.Pack(info)
    status = status_pb2.Status(
        code=status_code(refusal.reason), message=refusal.message, details=[detail]
    )
    return STATUS_DETAILS_KEY, status.SerializeToString()


def refusal_of(error: grpc.RpcError) -> Refusal | None:
    """Return the refusal a failed call carries, or None if the status is not one of ours."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    for detail in status.details if status is not None else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == ERROR_DOMAIN:
            reason = Reason.Value("REASON_" + info.reason)
            return Refusal(reason, status.message, **dict(info.metadata))
    return None
