"""Names in the request of a watch become ids, once, before the watch begins."""

from __future__ import annotations

from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2
from viewstamp.client.identifiers import FacadeClient, identifier


async def with_ids(client: FacadeClient, request: watch_pb2.WatchRequest) -> watch_pb2.WatchRequest:
    """Return the same request with ids instead of names.

    An incomplete one, such as a topic without its stream, stays as it is: the cluster refuses it.
    Raises Refusal (STREAM_NOT_FOUND, PERMISSION_DENIED, ...), TimedOut.
    """
    names = [request.stream.name, request.topic.name, request.group.name]
    is_complete = request.HasField("stream") and (
        request.HasField("topic") or not request.HasField("group")
    )
    if not any(names) or not is_complete:
        return request
    resolved = watch_pb2.WatchRequest()
    resolved.CopyFrom(request)
    await (_resolve_topic if request.HasField("topic") else _resolve_stream)(client, resolved)
    if request.group.name:
        await _resolve_group(client, resolved)
    return resolved


async def _resolve_stream(client: FacadeClient, request: watch_pb2.WatchRequest) -> None:
    from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2

    answer = await client.call(streams_pb2.GetStreamRequest(stream=request.stream))
    request.stream.CopyFrom(identifier(answer.stream.id))


async def _resolve_topic(client: FacadeClient, request: watch_pb2.WatchRequest) -> None:
    from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2

    asked = streams_pb2.GetTopicRequest(stream=request.stream, topic=request.topic)
    topic = (await client.call(asked)).topic
    request.stream.CopyFrom(identifier(topic.stream_id))
    request.topic.CopyFrom(identifier(topic.id))


async def _resolve_group(client: FacadeClient, request: watch_pb2.WatchRequest) -> None:
    from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups_pb2

    asked = groups_pb2.GetConsumerGroupRequest(
        stream=request.stream, topic=request.topic, group=request.group, page_size=1
    )
    request.group.CopyFrom(identifier((await client.call(asked)).group.id))
