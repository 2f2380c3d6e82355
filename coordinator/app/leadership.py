"""What this replica's status implies: whether it is ready, and whether it leads.

A replica in status normal is ready once everything then in its log has been applied. From then on
the primary leads: it proposes what is due, and orders snapshots.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from coordinator import vsr
from coordinator.app.outside import OPERATING_SYSTEM, Outside
from coordinator.mux import types as mux_types
from coordinator.replica.bootstrap import ROOT_PASSWORD_FILE
from coordinator.replica.ports import Progress
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.telemetry import fields

READY_FILE: Final = Path("run", "coordinator.json")
# How often the supervisor hears of the progress of a replica that is not ready yet.
PROGRESS_INTERVAL_S: Final = 5.0

_log = logging.getLogger(__name__)


class StatusFollower(Protocol):
    """The part that writes the journal: it cleans up once the log is that of the cluster."""

    def status_changed(self, *, is_normal: bool) -> None:
        """Hear whether the replica is in status normal."""


class LeadProposals(Protocol):
    """What the primary proposes by itself."""

    @property
    def active(self) -> bool:
        """Whether anything is proposed now."""

    def activate(self) -> None:
        """Begin to propose."""

    def deactivate(self) -> None:
        """Propose nothing more."""


class LeadSnapshots(Protocol):
    """The snapshots, which the primary orders."""

    def activate(self) -> None:
        """Begin to order snapshots."""

    def deactivate(self) -> None:
        """Order nothing more."""

    def wake(self) -> None:
        """Look for work now."""


class LeadTimers(Protocol):
    """Timers by which the primary ends what is idle or silent."""

    def begin(self) -> None:
        """Begin every timer anew."""

    def stop(self) -> None:
        """End no more sessions."""


class ClientStreams(Protocol):
    """The streams over which clients submit commands."""

    def end_all(self, refusal: Refusal) -> None:
        """End every stream with this refusal."""

    def session_ended(self, session_id: int) -> None:
        """End the streams of a session."""

    def credentials_ended(self, user_id: int) -> None:
        """End the streams whose credentials are no longer in force."""


class StatusReports(Protocol):
    """The other replicas, which are told how far this one is."""

    def report(self) -> None:
        """Report to the others now."""

    def settled(self) -> None:
        """Note that this replica has the log of a view."""


@dataclass(frozen=True, slots=True)
class LeadershipPorts:
    """The parts that hear of changes, and what is asked of the replica.

    `set_ready` says to probes whether clients are served, at `address`. `lacks_vote` says that the
    others do not count on this replica yet, though it should vote. `members` is None if this
    replica is alone. `replayed` notes that the journal was replayed. `start` runs work; if that
    work fails, the process ends.
    """

    progress: Callable[[], Progress]
    is_primary: Callable[[], bool]
    lacks_vote: Callable[[], bool]
    feature_level: Callable[[], int]
    ask_proposals: Callable[[], None]
    writer: StatusFollower
    proposals: LeadProposals
    timers: Sequence[LeadTimers]
    snapshots: LeadSnapshots
    replayed: Callable[[], Coroutine[Any, Any, None]]
    streams: ClientStreams
    set_ready: Callable[[bool], Coroutine[Any, Any, None]]
    address: str
    members: StatusReports | None
    data_directory: Path
    start: Callable[[Coroutine[Any, Any, None]], None]
    outside: Outside = OPERATING_SYSTEM


class Leadership:
    """Follows the status of one replica."""

    def __init__(self, ports: LeadershipPorts) -> None:
        self._ports = ports
        self._caught_up_op: int | None = None  # ready once this op has been applied; None: not now
        self._has_led = False  # since the status changed last
        self._is_caught_up = False
        self._lacked_vote = False  # when readiness was told last
        self._stalled = ""  # what does not get on, empty if nothing
        self._level_in_force = 0
        self._told_s = time.monotonic()

    def status_changed(self, changed: vsr.StatusChanged) -> None:
        """Take a new status or view."""
        ports = self._ports
        _log.info("status changed", extra=fields(status=changed.status.value, view=changed.view))
        is_normal = changed.status is vsr.ReplicaStatus.NORMAL
        ports.writer.status_changed(is_normal=is_normal)
        if self._has_led:
            self._stop_leading()
        # Clients are served from now on, whether or not this replica ever proposes anything.
        self._has_led = ports.is_primary()
        self._caught_up_op = ports.progress().op if is_normal else None
        if ports.members is not None:
            ports.members.report()
            if is_normal:
                ports.members.settled()
        ports.snapshots.wake()  # the primary is told what is durable here
        if not is_normal:
            self._is_caught_up = False
            self._tell_readiness()
        self._look_whether_ready()

    def stalled(self, reason: str) -> None:
        """Note why the stages make no progress (empty: they do again), and report the readiness."""
        self._stalled = reason
        log = _log.error if reason else _log.warning
        log("the stages are blocked" if reason else "the stages continue", extra=fields(why=reason))
        self._tell_readiness()

    def applied(self, applied: mux_types.Applied) -> None:
        """Note that an entry went through all stages."""
        if self._caught_up_op is not None:
            self._look_whether_ready()
        if not self._is_caught_up:
            self._tell_progress()
        if self._ports.lacks_vote() != self._lacked_vote:
            self._tell_readiness()
        self._look_at_level()
        for session_id in applied.ended_sessions:
            self._ports.streams.session_ended(session_id)
        for user_id in applied.users_with_ended_credentials:
            self._ports.streams.credentials_ended(user_id)

    def _tell_progress(self) -> None:
        """Tell the supervisor from time to time that a long log makes progress."""
        now_s = time.monotonic()
        if now_s - self._told_s < PROGRESS_INTERVAL_S:
            return
        self._told_s = now_s
        try:
            print(json.dumps({"applied": self._ports.progress().applied_op}), flush=True)  # noqa: T201
        except OSError as error:
            _log.warning("the supervisor could not be told", extra=fields(error=str(error)))

    def _look_at_level(self) -> None:
        """Once the feature level is raised, have the stages repeat the proposals that it kept out.

        Timers begin anew: below the level silence may have had no consequence.
        """
        level = self._ports.feature_level()
        if level != self._level_in_force:
            self._level_in_force = level
            if self._ports.proposals.active:
                self._begin_timers()
                self._ports.ask_proposals()

    def _begin_timers(self) -> None:
        for timers in self._ports.timers:
            timers.begin()

    def stopped(self) -> None:
        """Note that this replica serves no more clients."""
        self._ports.outside.remove_ready(self._ports.data_directory / READY_FILE)

    def _stop_leading(self) -> None:
        """Propose nothing more: another replica is, or will be, the primary, and gets the
        clients."""
        self._ports.proposals.deactivate()
        for timers in self._ports.timers:
            timers.stop()
        self._ports.snapshots.deactivate()
        self._ports.streams.end_all(
            Refusal(
                Reason.REASON_VIEW_CHANGE,
                "the replica is no longer the primary: connect again",
            )
        )

    def _look_whether_ready(self) -> None:
        applied_op = self._ports.progress().applied_op
        if self._caught_up_op is None or applied_op < self._caught_up_op:
            return
        self._caught_up_op = None
        self._is_caught_up = True
        self._tell_readiness()
        self._ports.start(self._became_ready())

    def _tell_readiness(self) -> None:
        """Say to probes whether clients are served here, and other replicas may be stopped.

        Whoever stops one replica after the other goes by this. So it waits for the vote of a
        replica that lost its disk: until then one more that stops would stop the cluster.
        """
        self._lacked_vote = self._ports.lacks_vote()
        is_ready = self._is_caught_up and not self._stalled and not self._lacked_vote
        self._ports.start(self._ports.set_ready(is_ready))

    async def _became_ready(self) -> None:
        ports = self._ports
        if ports.is_primary():
            ports.proposals.activate()
            self._begin_timers()
            ports.ask_proposals()
            ports.snapshots.activate()
        ports.start(ports.replayed())
        ready = {"address": ports.address, "pid": os.getpid()}
        try:
            file = ports.data_directory / READY_FILE
            await asyncio.to_thread(ports.outside.write_ready, file, ready)
            print(json.dumps({"ready": True, "service": "coordinator", **ready}), flush=True)  # noqa: T201
        except OSError as error:
            # A replica also serves on a full disk, and only tools look for this file.
            _log.warning(
                "the supervisor could not be told that the replica is ready",
                extra=fields(error=str(error)),
            )
        password = ports.data_directory / ROOT_PASSWORD_FILE
        _log.info("ready", extra=fields(**ready, root_password_file=str(password)))
