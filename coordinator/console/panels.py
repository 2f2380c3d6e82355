"""The panels of the page: each reads what one user may read, a page of it at a time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from coordinator.console.bounds import (
    FILTER_CHARACTERS_MAX,
    FILTERED_PAGE_ROWS,
    FILTERED_ROWS_MAX,
    GROUP_PARTITIONS_READ_MAX,
    GROUP_READS_AT_ONCE,
    GROUPS_SHOWN,
    LAGS_KEPT_MS,
    LAGS_MAX,
    ROWS_PER_PAGE,
    SNAPSHOTS_SHOWN,
)
from coordinator.console.console_client import ConsoleClient
from coordinator.console.console_documents import (
    Document,
    broker_document,
    lag_document,
    snapshot_document,
    stream_document,
    topic_document,
)
from viewstamp.api.brokers.v1 import brokers_service_pb2 as brokers_api
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_api
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_api
from viewstamp.client.consistency import STALE
from viewstamp.client.identifiers import identifier
from viewstamp.errors import Refusal
from viewstamp.metering import GroupLags

_ID_DIGITS_MAX: Final = 20
_ID_MAX: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class PanelRequest:
    """What a page asks of a panel: a filter, a place to go on from, a stream by its id."""

    query: Mapping[str, str]

    @property
    def page_token(self) -> str:
        """Where to go on; empty for the beginning."""
        return self.query.get("page", "")

    @property
    def filter(self) -> str:
        """What names must have in them, in lower case. Raises Refusal if it is too long."""
        text = self.query.get("filter", "").strip().lower()
        if len(text) > FILTER_CHARACTERS_MAX:
            raise _malformed(f"a filter has at most {FILTER_CHARACTERS_MAX} characters")
        return text

    @property
    def stream_id(self) -> int:
        """The stream. Raises Refusal unless it is an id."""
        text = self.query.get("stream", "")
        is_number = text.isascii() and text.isdecimal() and len(text) <= _ID_DIGITS_MAX
        if not is_number or int(text) > _ID_MAX:
            raise _malformed("name the stream by its id: /data/topics?stream=7")
        return int(text)


@dataclass(slots=True)
class _Lags:
    """The lags that the holder of one token may read, read by one caller at a time."""

    meter: GroupLags
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    read_ms: int | None = None
    groups: list[Document] = field(default_factory=list)


class Panels:
    """Answers what pages ask for. Lags are kept for a moment, because reading them costs most."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._lags: OrderedDict[str, _Lags] = OrderedDict()
        self._panels = MappingProxyType(
            {
                "snapshots": self._snapshots,
                "brokers": self._brokers,
                "streams": self._streams,
                "topics": self._topics,
                "groups": self._groups,
            }
        )

    @property
    def names(self) -> Sequence[str]:
        """What may be asked for."""
        return tuple(self._panels)

    async def read(self, name: str, client: ConsoleClient, asked: PanelRequest) -> Document:
        """Return one panel of `names` as its user may read it. Raises Refusal."""
        return await self._panels[name](client, asked)

    async def _snapshots(self, client: ConsoleClient, asked: PanelRequest) -> Document:
        request = snapshots_api.ListSnapshotsRequest(
            page_size=SNAPSHOTS_SHOWN, page_token=asked.page_token
        )
        return _page(await client.call(request), "snapshots", snapshot_document)

    async def _brokers(self, client: ConsoleClient, asked: PanelRequest) -> Document:
        request = brokers_api.ListBrokersRequest()
        return await _filtered(client, request, "brokers", broker_document, asked)

    async def _streams(self, client: ConsoleClient, asked: PanelRequest) -> Document:
        request = streams_api.ListStreamsRequest()
        return await _filtered(client, request, "streams", stream_document, asked)

    async def _topics(self, client: ConsoleClient, asked: PanelRequest) -> Document:
        request = streams_api.ListTopicsRequest(stream=identifier(asked.stream_id))
        return await _filtered(client, request, "topics", topic_document, asked)

    async def _groups(self, client: ConsoleClient, asked: PanelRequest) -> Document:
        # Whoever may not list streams is told so; the search for groups would find none.
        await client.call(streams_api.ListStreamsRequest(page_size=1))
        lags = self._lags_of(client)
        async with lags.turn:
            now_ms = self._clock_ms()
            if lags.read_ms is None or now_ms - lags.read_ms >= LAGS_KEPT_MS:
                lags.groups = [lag_document(each) for each in await lags.meter.worst(GROUPS_SHOWN)]
                lags.read_ms = now_ms
        return {"groups": lags.groups}

    def _lags_of(self, client: ConsoleClient) -> _Lags:
        token = client.access_token
        if token not in self._lags:
            meter = GroupLags(
                client,
                consistency=STALE,
                partitions_max=GROUP_PARTITIONS_READ_MAX,
                reads_max=GROUP_READS_AT_ONCE,
            )
            self._lags[token] = _Lags(meter)
            if len(self._lags) > LAGS_MAX:
                self._lags.popitem(last=False)
        self._lags.move_to_end(token)
        return self._lags[token]


def _page(response: Any, rows: str, document: Callable[[Any], Document]) -> Document:
    found = [document(each) for each in getattr(response, rows)]
    return _rows(rows, found, response.next_page_token, response.header.revision)


def _rows(name: str, rows: Iterable[Document], next_page: str, revision: int) -> Document:
    return {name: list(rows), "next": next_page, "revision": revision}


async def _filtered(
    client: ConsoleClient,
    request: Any,
    rows: str,
    document: Callable[[Any], Document],
    asked: PanelRequest,
) -> Document:
    """Return a page of what a filter leaves. The next page goes on where this one stopped looking.

    `looked_at` says at how many rows, so that a page without rows tells why.
    """
    wanted, request.page_token = asked.filter, asked.page_token
    request.page_size = FILTERED_PAGE_ROWS if wanted else ROWS_PER_PAGE
    found: list[Document] = []
    looked_at = 0
    while True:
        response = await client.call(request)
        page = getattr(response, rows)
        looked_at += len(page)
        found += [document(each) for each in page if _matches(each, wanted)]
        request.page_token = response.next_page_token
        is_enough = len(found) >= ROWS_PER_PAGE or looked_at >= FILTERED_ROWS_MAX
        if not wanted or not request.page_token or is_enough:
            break
    told = _rows(rows, found, response.next_page_token, response.header.revision)
    return {**told, "looked_at": looked_at}


def _matches(entity: Any, wanted: str) -> bool:
    return not wanted or wanted in entity.name.lower() or wanted == str(entity.id)


def _malformed(message: str) -> Refusal:
    return Refusal(Reason.REASON_MALFORMED_REQUEST, message)
