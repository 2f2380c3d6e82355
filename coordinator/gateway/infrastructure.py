"""gRPC's own services beside ours: health, reflection and Channelz, safe from malformed bytes.

The library's handlers answer malformed bytes with UNKNOWN and a stack trace in the log for each,
and anybody can send them. Here they are parsed where a refusal can be given. `grpc.reflection.v1`
has exactly the messages of `v1alpha`, the only version that the Python library knows.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Final, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_channelz.v1 import channelz_pb2_grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import _async as reflection
from grpc_reflection.v1alpha import reflection_pb2_grpc

from viewstamp import grpc_transport

REFLECTION_ALPHA: Final = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
REFLECTION: Final = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"

Context = grpc.aio.ServicerContext[Any, Any]


def health_handlers(health: HealthServicer) -> Mapping[str, Any]:
    """Return the handlers of Health by path."""
    collector = _Collector()
    add: Any = health_pb2_grpc.add_HealthServicer_to_server
    add(health, collector)
    return collector.handlers


def channelz_handlers() -> Mapping[str, Any]:
    """Return the handlers of Channelz by path."""
    collector = _Collector()
    servicer = grpc_transport.make_channelz()
    channelz_pb2_grpc.add_ChannelzServicer_to_server(servicer, collector)
    return collector.handlers


def reflection_handlers(service_names: Iterable[str]) -> Mapping[str, Any]:
    """Return the handlers of reflection about these services, by path."""
    collector = _Collector()
    servicer = reflection.ReflectionServicer(service_names)
    add: Any = reflection_pb2_grpc.add_ServerReflectionServicer_to_server
    add(servicer, collector)
    return {**collector.handlers, REFLECTION: collector.handlers[REFLECTION_ALPHA]}


class _Collector:
    """Collects the handlers that generated code registers with a server."""

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, _: object) -> None:
        """Do nothing: the same handlers come by their names."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Collect the implemented handlers of a service."""
        for name, handler in handlers.items():
            guarded = _guarded(handler)
            if guarded is not None:
                self.handlers[f"/{service}/{name}"] = guarded


def _guarded(handler: Any) -> Any:
    parse, serialize = handler.request_deserializer, handler.response_serializer
    if handler.request_streaming:
        assert inspect.isasyncgenfunction(handler.stream_stream), "served otherwise than expected"
        stream = _stream_stream(handler.stream_stream, parse)
        return grpc.stream_stream_rpc_method_handler(stream, None, serialize)
    serve = handler.unary_stream if handler.response_streaming else handler.unary_unary
    # All are coroutines: one that answers by a stream writes to it itself. Anything else is the
    # stub of a method that the library does not implement.
    if not inspect.iscoroutinefunction(serve):
        return None
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(_unary(serve, parse), None, serialize)
    return grpc.unary_unary_rpc_method_handler(_unary(serve, parse), None, serialize)


def _unary(serve: Callable[..., Any], parse: Callable[[bytes], Any]) -> Callable[..., Any]:
    async def guarded(data: bytes, context: Context) -> Any:
        try:
            request = parse(data)
        except DecodeError:
            await _refuse(context)
        return await serve(request, context)

    return guarded


def _stream_stream(serve: Callable[..., Any], parse: Callable[[bytes], Any]) -> Callable[..., Any]:
    async def requests(messages: AsyncIterator[bytes], context: Context) -> AsyncIterator[Any]:
        async for data in messages:
            try:
                request = parse(data)
            except DecodeError:
                await _refuse(context)
            yield request

    async def guarded(messages: AsyncIterator[bytes], context: Context) -> AsyncIterator[Any]:
        async for response in serve(requests(messages, context), context):
            yield response

    return guarded


async def _refuse(context: Context) -> NoReturn:
    await context.abort(
        grpc.StatusCode.INVALID_ARGUMENT, "the bytes are not the message of this method"
    )
    raise AssertionError("abort always raises")
