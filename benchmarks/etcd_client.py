"""The part of etcd's gRPC API that benchmarks use: Put, Range, Txn, Watch, Snapshot, Status.

The messages are built from their field numbers, so that no files of etcd are needed. They describe
only the fields that benchmarks use; other fields of answers are skipped as unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE: Final = "etcdserverpb"
STATUS_TIMEOUT_S: Final = 1.0
_Field = descriptor_pb2.FieldDescriptorProto
_BYTES: Final = _Field.TYPE_BYTES
_INT64: Final = _Field.TYPE_INT64
_UINT64: Final = _Field.TYPE_UINT64
_BOOL: Final = _Field.TYPE_BOOL
# Message -> its fields (name, number, scalar type or message name, repeated), then its oneof.
_MESSAGES: Final[dict[str, tuple[tuple[tuple[str, int, int | str, bool], ...], str]]] = {
    "PutRequest": ((("key", 1, _BYTES, False), ("value", 2, _BYTES, False)), ""),
    "ResponseHeader": (
        (("member_id", 2, _UINT64, False), ("revision", 3, _INT64, False)),
        "",
    ),
    "PutResponse": ((("header", 1, "ResponseHeader", False),), ""),
    "RangeRequest": ((("key", 1, _BYTES, False), ("serializable", 7, _BOOL, False)), ""),
    "KeyValue": ((("key", 1, _BYTES, False), ("value", 5, _BYTES, False)), ""),
    "RangeResponse": (
        (("header", 1, "ResponseHeader", False), ("kvs", 2, "KeyValue", True)),
        "",
    ),
    "RequestOp": ((("request_put", 2, "PutRequest", False),), "request"),
    "TxnRequest": ((("success", 2, "RequestOp", True),), ""),
    "TxnResponse": (
        (("header", 1, "ResponseHeader", False), ("succeeded", 2, _BOOL, False)),
        "",
    ),
    "WatchCreateRequest": (
        (("key", 1, _BYTES, False), ("range_end", 2, _BYTES, False)),
        "",
    ),
    "WatchRequest": ((("create_request", 1, "WatchCreateRequest", False),), "request_union"),
    "Event": ((("kv", 2, "KeyValue", False),), ""),
    "WatchResponse": (
        (("header", 1, "ResponseHeader", False), ("events", 11, "Event", True)),
        "",
    ),
    "StatusRequest": ((), ""),
    "StatusResponse": (
        (("header", 1, "ResponseHeader", False), ("leader", 4, _UINT64, False)),
        "",
    ),
    "SnapshotRequest": ((), ""),
    "SnapshotResponse": (
        (("remaining_bytes", 2, _UINT64, False), ("blob", 3, _BYTES, False)),
        "",
    ),
}


def _message(name: str) -> descriptor_pb2.DescriptorProto:
    fields, oneof = _MESSAGES[name]
    message = descriptor_pb2.DescriptorProto(name=name)
    if oneof:
        message.oneof_decl.add(name=oneof)
    for field_name, number, kind, repeated in fields:
        field = message.field.add(name=field_name, number=number)
        field.label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
        if isinstance(kind, str):
            field.type, field.type_name = _Field.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
        else:
            field.type = kind  # type: ignore[assignment]
        if oneof:
            field.oneof_index = 0
    return message


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="benchmarks/etcd_client.proto", package=PACKAGE, syntax="proto3"
    )
    file.message_type.extend(map(_message, _MESSAGES))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in _MESSAGES
    }


def path(method: str, service: str = "KV") -> str:
    """Return the path of a method."""
    return f"/{PACKAGE}.{service}/{method}"


CLASSES: Final = _classes()
PutRequest: Final = CLASSES["PutRequest"]
RangeRequest: Final = CLASSES["RangeRequest"]
RequestOp: Final = CLASSES["RequestOp"]
TxnRequest: Final = CLASSES["TxnRequest"]
SnapshotRequest: Final = CLASSES["SnapshotRequest"]


class EtcdClient:
    """One connection to etcd; calls return awaitables of the response messages."""

    def __init__(self, address: str, options: Sequence[tuple[str, Any]] = ()) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=options)
        self.put = self._method("Put", "PutRequest", "PutResponse")
        self.range = self._method("Range", "RangeRequest", "RangeResponse")
        self.transact = self._method("Txn", "TxnRequest", "TxnResponse")
        self._status = self._method("Status", "StatusRequest", "StatusResponse", "Maintenance")
        # Takes the request encoded.
        self.transact_encoded: Any = self._channel.unary_unary(
            path("Txn"), response_deserializer=CLASSES["TxnResponse"].FromString
        )
        # Returns an iterator of responses, whose blobs are the whole database.
        self.snapshot = self._channel.unary_stream(
            path("Snapshot", "Maintenance"),
            request_serializer=CLASSES["SnapshotRequest"].SerializeToString,
            response_deserializer=CLASSES["SnapshotResponse"].FromString,
        )

    async def status(self) -> Any:
        """Return the node's status: its id, and the leader's."""
        return await self._status(CLASSES["StatusRequest"](), timeout=STATUS_TIMEOUT_S)

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    def _method(self, name: str, request: str, response: str, service: str = "KV") -> Any:
        return self._channel.unary_unary(
            path(name, service),
            request_serializer=CLASSES[request].SerializeToString,
            response_deserializer=CLASSES[response].FromString,
        )
