"""Routing: the options in the protos are all that coordinator, services and client know."""

from __future__ import annotations

import pkgutil
from importlib import import_module

import pytest
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError

from viewstamp import api
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups_pb2
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.api.users.v1 import users_service_pb2 as users_pb2
from viewstamp.framing import frame_all
from viewstamp.routing import (
    Method,
    MethodKind,
    batch_class,
    file_closure,
    methods_of_file,
    pool_of,
)


def all_files() -> list[FileDescriptor]:
    """Return every proto file of the API."""
    modules = pkgutil.walk_packages(api.__path__, api.__name__ + ".")
    names = [module.name for module in modules if module.name.endswith("_pb2")]
    return [import_module(name).DESCRIPTOR for name in names]


def method(file: FileDescriptor, name: str) -> Method:
    """Return one method of a file."""
    return next(found for found in methods_of_file(file) if found.name == name)


@pytest.mark.parametrize(
    ("file", "name", "expected"),
    [
        (streams_pb2.DESCRIPTOR, "DeleteStream", {"emits_backward": (routing_pb2.STAGE_USERS,)}),
        (users_pb2.DESCRIPTOR, "CreateUser", {"normalize": True, "sets_grants": True}),
        (users_pb2.DESCRIPTOR, "Login", {"kind": MethodKind.QUERY, "public": True}),
        (groups_pb2.DESCRIPTOR, "Assign", {"internal": True, "resolve_stage": 0}),
        (
            groups_pb2.DESCRIPTOR,
            "JoinConsumerGroup",
            {"resolve_stage": routing_pb2.STAGE_STREAMS, "gate": routing_pb2.GATE_READ_TOPIC},
        ),
    ],
)
def test_options(file: FileDescriptor, name: str, expected: dict[str, object]) -> None:
    """A method's route equals its options in the proto."""
    found = method(file, name)

    assert {key: getattr(found, key) for key in expected} == expected


def test_codes_are_unique() -> None:
    """No two methods of the whole API share a code: codes are in the log for good."""
    methods = [found for file in all_files() for found in methods_of_file(file)]
    codes = [found.code for found in methods]

    assert len(methods) > 40
    assert len(set(codes)) == len(codes)


def test_closure_is_enough() -> None:
    """The descriptors a service announces suffice to route its methods in a pool of their own."""
    pool = pool_of(file_closure([streams_pb2.DESCRIPTOR]))
    announced = pool.FindFileByName(streams_pb2.DESCRIPTOR.name)

    known = [(m.full_name, m.code, m.gate) for m in methods_of_file(streams_pb2.DESCRIPTOR)]
    assert [(m.full_name, m.code, m.gate) for m in methods_of_file(announced)] == known


def test_batches_parse_whole_spans() -> None:
    """A typed batch decodes every frame of a span in one call, and refuses what is malformed."""
    requests = [streams_pb2.CreateStreamRequest(name=f"stream-{n}") for n in range(3)]
    batch = batch_class(streams_pb2.CreateStreamRequest.DESCRIPTOR)

    decoded = batch.FromString(frame_all(r.SerializeToString() for r in requests)).items

    assert list(decoded) == requests
    assert batch_class(streams_pb2.CreateStreamRequest.DESCRIPTOR) is batch
    with pytest.raises(DecodeError):
        batch.FromString(frame_all([b"\xff"]))
