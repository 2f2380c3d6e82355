"""Methods as the routing options in the protos describe them.

Coordinator, services and client all read the same options; nobody keeps a list of methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FileDescriptor, MethodDescriptor
from google.protobuf.message import Message

from viewstamp.api.routing.v1 import routing_pb2

# The domain services, in the order of their stages. The other stages are in the coordinator.
SERVICE_NAMES: Final = ("users", "streams", "consumer_groups")


class MethodKind(Enum):
    """What a method does to the state."""

    COMMAND = "command"
    QUERY = "query"


@dataclass(frozen=True, slots=True)
class Method:
    """One routed RPC: its option values, its request message and its response message."""

    full_name: str  # "viewstamp.api.streams.v1.StreamsService/CreateTopic"
    kind: MethodKind
    code: int
    owner: int  # routing_pb2.Stage
    resolve_stage: int  # routing_pb2.Stage; STAGE_UNSPECIFIED for none
    gate: int  # routing_pb2.Gate
    normalize: bool
    emits_backward: tuple[int, ...]
    sets_grants: bool
    internal: bool
    public: bool
    since_level: int  # at least 1
    alone: bool
    one_at_a_time: bool
    at_primary: bool
    request: type[Message]
    response: type[Message]
    field_levels: Mapping[str, int]
    """The fields of a command's request that count from a level above 1 on, with that level."""
    name: str = field(init=False, compare=False)
    """The RPC's own name, for example `CreateTopic`."""
    path: str = field(init=False, compare=False)
    """The gRPC path, for example `/viewstamp.api.streams.v1.StreamsService/CreateTopic`."""

    def __post_init__(self) -> None:
        """Set the name and the path once, because each command needs them."""
        object.__setattr__(self, "name", self.full_name.rpartition("/")[2])
        object.__setattr__(self, "path", "/" + self.full_name)


def methods_of_file(file: FileDescriptor) -> Iterator[Method]:
    """Yield the routed methods of one proto file; streaming and unmarked RPCs are left out."""
    for service in file.services_by_name.values():
        for method in service.methods:
            routed = _method(method)
            if routed is not None:
                yield routed


def _method(descriptor: MethodDescriptor) -> Method | None:
    # Options of descriptors from another pool hold our extensions as unknown fields, so parse
    # again.
    options = descriptor_pb2.MethodOptions.FromString(
        descriptor.GetOptions().SerializeToString(deterministic=True)
    )
    full_name = f"{descriptor.containing_service.full_name}/{descriptor.name}"
    request = message_factory.GetMessageClass(descriptor.input_type)
    response = message_factory.GetMessageClass(descriptor.output_type)
    if options.HasExtension(routing_pb2.command):
        command = options.Extensions[routing_pb2.command]
        return Method(
            full_name=full_name,
            kind=MethodKind.COMMAND,
            code=command.code,
            owner=command.owner,
            resolve_stage=command.resolve.stage,
            gate=command.resolve.gate,
            normalize=command.normalize,
            emits_backward=tuple(command.emits_backward),
            sets_grants=command.sets_grants,
            internal=command.internal,
            public=False,
            since_level=max(1, command.since_level),
            alone=command.alone,
            one_at_a_time=command.one_at_a_time,
            at_primary=True,
            request=request,
            response=response,
            field_levels=_field_levels(descriptor.input_type),
        )
    if options.HasExtension(routing_pb2.query):
        query = options.Extensions[routing_pb2.query]
        return Method(
            full_name=full_name,
            kind=MethodKind.QUERY,
            code=query.code,
            owner=query.owner,
            resolve_stage=query.resolve.stage,
            gate=query.resolve.gate,
            normalize=False,
            emits_backward=(),
            sets_grants=False,
            internal=False,
            public=query.public,
            since_level=max(1, query.since_level),
            alone=False,
            one_at_a_time=False,
            at_primary=query.at_primary,
            request=request,
            response=response,
            field_levels={},
        )
    return None


def _field_levels(request: Descriptor) -> dict[str, int]:
    levels = {}
    for each in request.fields:
        if each.has_options:
            # Parsed again for the same reason as the options of methods.
            options = descriptor_pb2.FieldOptions.FromString(each.GetOptions().SerializeToString())
            level = options.Extensions[routing_pb2.since_level]
            if level > 1:
                levels[each.name] = level
    return levels


def sets_field(request: Message, name: str) -> bool:
    """Return whether a request gives a field a value other than its default."""
    field = request.DESCRIPTOR.fields_by_name[name]
    return request.HasField(name) if field.has_presence else bool(getattr(request, name))


def file_closure(files: Iterable[FileDescriptor]) -> list[bytes]:
    """Return the encoded descriptors of `files` and all they import, dependencies first."""
    ordered: dict[str, bytes] = {}

    def visit(file: FileDescriptor) -> None:
        if file.name in ordered:
            return
        for dependency in file.dependencies:
            visit(dependency)
        ordered[file.name] = file.serialized_pb

    for file in files:
        visit(file)
    return list(ordered.values())


_batch_classes: dict[str, type[Any]] = {}


def batch_class(item: Descriptor) -> type[Any]:
    """Return a message class `{repeated <item> items = 1}` for typed parsing of framed blobs.

    `batch_class(d).FromString(blob).items` decodes all frames of a blob in one call, about twice
    as fast as one call per frame. Raises protobuf's DecodeError where any item is malformed.
    """
    cached = _batch_classes.get(item.full_name)
    if cached is not None and cached.DESCRIPTOR.fields_by_name["items"].message_type is item:
        return cached
    name = item.full_name.replace(".", "_") + "Batch"
    file = descriptor_pb2.FileDescriptorProto(
        name=f"viewstamp/batch/{name}.proto", package="viewstamp.batch", syntax="proto3"
    )
    file.dependency.append(item.file.name)
    message = file.message_type.add(name=name)
    message.field.add(
        name="items",
        number=1,
        type=descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
        label=descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED,
        type_name="." + item.full_name,
    )
    pool = item.file.pool
    descriptor = pool.AddSerializedFile(file.SerializeToString()).message_types_by_name[name]
    result: type[Any] = message_factory.GetMessageClass(descriptor)
    _batch_classes[item.full_name] = result
    return result


def pool_of(file_descriptors: Iterable[bytes]) -> descriptor_pool.DescriptorPool:
    """Return a pool of encoded FileDescriptorProtos given dependencies first."""
    pool = descriptor_pool.DescriptorPool()
    for encoded in file_descriptors:
        pool.AddSerializedFile(encoded)
    return pool
