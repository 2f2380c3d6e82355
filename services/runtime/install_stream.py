"""The installation of a section over an Apply stream: the order of messages, and the answers."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import grpc

from services.runtime.installing import (
    InstallOrderError,
    NewerSectionError,
    SectionContentsError,
    SectionInstallation,
)
from services.runtime.machine import Machine
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.garbage import spare_what_is_there
from viewstamp.telemetry.work import begun

# How long loading runs before others, such as health checks, get their turn.
INSTALL_SLICE_MS: Final = 20

_NS_PER_MS: Final = 1_000_000
_STATUSES: Final = {
    InstallOrderError: grpc.StatusCode.INVALID_ARGUMENT,
    NewerSectionError: grpc.StatusCode.FAILED_PRECONDITION,
    SectionContentsError: grpc.StatusCode.DATA_LOSS,
}


class InstallRefused(Exception):  # noqa: N818 - the way a stream ends
    """The installation ends here, with this status; the machine is unchanged."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class InstallSteps:
    """One installation into a machine: begin, blocks, end, activate. Then `is_over` is set."""

    def __init__(self, machine: Machine[Any]) -> None:
        """Expect the beginning."""
        self.is_over = False
        self._machine = machine
        self._installation: SectionInstallation[Any] | None = None
        self._expected = {"begin"}
        self._span = begun("install")

    async def handle(self, message: pb.Install) -> pb.Installed | None:
        """Handle the next message, and return the answer, if any. Raises InstallRefused."""
        kind = message.WhichOneof("kind")
        try:
            if kind not in self._expected:
                expected = " or ".join(sorted(self._expected))
                raise InstallOrderError(f"install: {kind} comes where {expected} is due")
            if kind == "begin":
                self._begin(message.begin)
            elif kind == "block":
                self._started.add(message.block)
            elif kind == "end":
                return await self._load()
            else:
                self._activate()
        except tuple(_STATUSES) as error:
            raise InstallRefused(_STATUSES[type(error)], str(error)) from error
        return None

    @property
    def _started(self) -> SectionInstallation[Any]:
        assert self._installation is not None, "nothing but begin is expected before it"
        return self._installation

    def _begin(self, begin: pb.InstallBegin) -> None:
        told = {"viewstamp.generation": begin.generation, "viewstamp.entities": begin.entities}
        self._span.set_attributes(told)
        self._installation = SectionInstallation(self._machine.domain, begin)
        self._expected = {"block", "end"}

    async def _load(self) -> pb.Installed:
        until = time.perf_counter_ns() + INSTALL_SLICE_MS * _NS_PER_MS
        for _ in self._started.loading():
            if time.perf_counter_ns() > until:
                await asyncio.sleep(0)
                until = time.perf_counter_ns() + INSTALL_SLICE_MS * _NS_PER_MS
        installed = self._started.installed
        assert installed is not None, "loading ends with it, or raises"
        self._expected = {"activate"}
        return installed.answer()

    def _activate(self) -> None:
        installed = self._started.installed
        assert installed is not None, "activate is expected behind end alone"
        self._machine.activate(installed)
        spare_what_is_there()
        self._installation = None
        self.is_over = True
        self._span.end()
