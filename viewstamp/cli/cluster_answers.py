"""Evidence from the replicas themselves: each answers from its own state, however old that is."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any, Final

import grpc.aio

from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.cli.output import plain
from viewstamp.client import ClientError, Endpoint, unary
from viewstamp.client.transport import AccessTokenSource
from viewstamp.doctor.evidence import DoctorEvidence
from viewstamp.errors import Refusal

# More than a cluster has, standbys included.
REPLICAS_ASKED_MAX: Final = 16
SNAPSHOTS_MAX: Final = 100
_CERTIFICATE_TIMEOUT_S: Final = 5.0


class ClusterAnswers:
    """Asks replicas with one identity; `tls_ca` is the authority of their certificates."""

    def __init__(
        self,
        evidence: DoctorEvidence,
        identity: AccessTokenSource,
        tls_ca: Path | None,
        timeout_s: float,
    ) -> None:
        self._evidence = evidence
        self._identity = identity
        self._tls_ca = tls_ca
        self._timeout_s = timeout_s

    async def gather(self, addresses: list[str]) -> None:
        """Ask these replicas, and those that they name."""
        await asyncio.gather(*map(self._look, addresses[:REPLICAS_ASKED_MAX]))
        named = {
            replica["address"]
            for status in self._evidence.statuses.values()
            for replica in status["replicas"]
        }
        known = {*addresses, *self._own_addresses(), ""}
        room = REPLICAS_ASKED_MAX - len(addresses)
        await asyncio.gather(*map(self._look, sorted(named - known)[: max(0, room)]))

    def _own_addresses(self) -> set[str]:
        """Return by which address each replica that answered calls itself: its link is empty."""
        statuses = self._evidence.statuses.values()
        own = (each for status in statuses for each in status["replicas"] if not each["link"])
        return {replica["address"] for replica in own}

    async def _look(self, address: str) -> None:
        evidence = self._evidence
        try:
            async with Endpoint(address, self._tls_ca).open() as channel:
                await self._ask(address, channel)
            if self._tls_ca is not None:
                evidence.certificate_ends_s[address] = await self._certificate_end_s(address)
        except (Refusal, ClientError, OSError, ValueError) as error:
            evidence.failures[address] = f"{type(error).__name__}: {error}"
        except grpc.aio.AioRpcError as error:
            evidence.failures[address] = f"{error.code().name}: {error.details()}"

    async def _ask(self, address: str, channel: grpc.aio.Channel) -> None:
        token = await self._identity.access_token(channel)
        self._evidence.secrets.add(token)
        options: dict[str, Any] = {
            "access_token": token,
            "timeout_s": self._timeout_s,
            "stale": True,
        }
        found = await unary(channel, cluster_pb2.GetStatusRequest(), **options)
        header = {"view": found.header.view, "revision": found.header.revision}
        self._evidence.statuses[address] = {**plain(found), **header}
        if self._evidence.snapshots is None:
            request = snapshots_pb2.ListSnapshotsRequest(page_size=SNAPSHOTS_MAX)
            listed = await unary(channel, request, **options)
            self._evidence.snapshots = [plain(each) for each in listed.snapshots]

    async def _certificate_end_s(self, address: str) -> float:
        host, _, port = address.rpartition(":")
        context = ssl.create_default_context(cafile=self._tls_ca)
        context.set_alpn_protocols(["h2"])
        async with asyncio.timeout(_CERTIFICATE_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
        certificate = writer.get_extra_info("peercert")
        writer.close()
        return float(ssl.cert_time_to_seconds(certificate["notAfter"]))
