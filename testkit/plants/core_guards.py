"""One bug for each known pitfall of the protocol: a guard of the core, taken out.

A bug is put in place of a function or a rule of the core, while a seed of any simulator runs.
Where the core's own invariants would see it at once, they look away (`unseen`), so that it is left
to what clients and disks show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from coordinator import vsr
from coordinator.mux.entities import Session
from coordinator.mux.sessions import SessionsMachine
from coordinator.vsr import (
    acknowledge,
    log_adoption,
    log_selection,
    message_guards,
    message_rules,
    message_shapes,
    messages,
    pre_votes,
    repair,
    replica,
    start_view,
    view_change,
)
from coordinator.vsr.effects import DropRule, ReplicaStatus
from coordinator.vsr.log import LogEntry
from coordinator.vsr.state import ReplicaState
from coordinator.vsr.timeouts import TimeoutName

Patch = pytest.MonkeyPatch


def unseen(patch: Patch) -> None:
    """Let the core's own invariants look away."""
    patch.setattr(replica, "check_step", lambda before, state: None)


def receive(
    patch: Patch, message: type, rules: message_rules.Rules, handler: Callable[..., None]
) -> None:
    """Give every member another way to take a kind of message."""
    known = replica.MESSAGE_HANDLERS[message]
    members = {status: (rules, handler) for status in known if status is not ReplicaStatus.BLANK}
    patch.setitem(replica.MESSAGE_HANDLERS, message, {**known, **members})


def never(patch: Patch, name: TimeoutName) -> None:
    """Let a timeout come to nothing."""
    patch.setitem(replica.TIMEOUT_HANDLERS, name, lambda state: state.timeouts.stop(name))


def truncate_when_behind(patch: Patch) -> None:
    """A replica that hears of a later view discards what it does not know to be committed."""
    real = start_view.on_newer_view

    def truncate(state: ReplicaState, message: Any) -> None:
        if state.log.op > state.commit_max:
            state.discard_after(state.commit_max)
        real(state, message)

    patch.setattr(start_view, "on_newer_view", truncate)


def ignore_later_views(patch: Patch) -> None:
    """A replica ignores votes, logs and requests of a view later than its own."""
    for message in (
        messages.DoViewChangeMessage,
        messages.StartViewMessage,
        messages.RequestStartViewMessage,
    ):
        rules, handler = replica.MESSAGE_HANDLERS[message][ReplicaStatus.NORMAL]
        receive(patch, message, ((DropRule.NEWER_VIEW, message_guards.newer_view), *rules), handler)


def pre_vote_once(patch: Patch) -> None:
    """A replica sends its pre-vote for the next view once."""
    never(patch, TimeoutName.PRE_VOTE_RESEND)


def vote_once(patch: Patch) -> None:
    """A replica sends its vote once."""
    never(patch, TimeoutName.VOTE_RESEND)


def ask_once(patch: Patch) -> None:
    """A restarted replica asks for a view's log once, even if no answer comes."""
    real = start_view.ask
    asked: dict[bytes, int] = {}

    def ask(state: ReplicaState, view: int) -> None:
        is_restarted = state.status is ReplicaStatus.RECOVERING
        if not is_restarted or asked.get(state.boot_nonce, -1) < view:
            asked[state.boot_nonce] = view
            real(state, view)

    never(patch, TimeoutName.START_VIEW_REQUEST)
    patch.setattr(start_view, "ask", ask)


def take_holed_logs(patch: Patch) -> None:
    """A primary-elect counts a vote that lacks an entry."""
    patch.setattr(message_shapes, "is_whole", lambda message: True)


def take_any_log(patch: Patch) -> None:
    """A replica accepts a log of its own view that is older than its later acknowledgements."""
    rules = tuple(
        r for r in message_rules.START_VIEW_RULES if r[0] is not DropRule.STALE_START_VIEW
    )
    _, handler = replica.MESSAGE_HANDLERS[messages.StartViewMessage][ReplicaStatus.NORMAL]
    receive(patch, messages.StartViewMessage, rules, handler)


def wait_for_a_primary(patch: Patch) -> None:
    """A restarted replica takes no part in view changes until a primary has sent it the log."""
    real = pre_votes.due_view
    patch.setattr(
        pre_votes,
        "due_view",
        lambda state: None if state.status is ReplicaStatus.RECOVERING else real(state),
    )
    for message in (messages.DoViewChangeMessage, messages.RequestStartViewMessage):
        known = replica.MESSAGE_HANDLERS[message]
        others = {
            status: known[status] for status in known if status is not ReplicaStatus.RECOVERING
        }
        patch.setitem(replica.MESSAGE_HANDLERS, message, others)


def vouch_before_durable(patch: Patch) -> None:
    """A backup acknowledges an entry when its write begins."""
    real = ReplicaState.write

    def write(self: ReplicaState, prepare: Any, *, fills: bool = False) -> LogEntry:
        entry = real(self, prepare, fills=fills)
        entry.durable = True
        return entry

    patch.setattr(ReplicaState, "write", write)


def go_on_counting(patch: Patch) -> None:
    """A new session continues the request numbers of another session of its user."""
    real = SessionsMachine._register

    def register(self: SessionsMachine, command: Any, user_id: int, revision: int) -> Any:
        others = [self._existing(session_id) for session_id in self.ids_of_user.get(user_id) or ()]
        applied = real(self, command, user_id, revision)
        if others and self._sessions.get(revision) is not None:
            last_number = max(session.last_number for session in others)
            self._sessions.put(revision, Session(revision, user_id, command.nonce, last_number))
        return applied

    patch.setattr(SessionsMachine, "_register", register)


def vote_before_durable(patch: Patch) -> None:
    """A replica votes in a view before its disk has recorded the view."""

    def may_vote(state: ReplicaState) -> bool:
        in_change = state.status is ReplicaStatus.VIEW_CHANGE and state.installation is None
        return in_change and state.is_voter and not state.is_installed and state.log.is_quiet

    unseen(patch)
    patch.setattr(view_change, "may_vote", may_vote)


def act_before_log_view_is_durable(patch: Patch) -> None:
    """A replica acts as normal in a view before its disk has recorded that it has the log."""
    real = log_adoption.record
    patch.setattr(
        ReplicaState,
        "is_installed",
        property(lambda self: self.durable is not None and self.log_view == self.view),
    )

    def record(state: ReplicaState, installation: Any) -> None:
        was_installed = state.is_installed
        real(state, installation)
        if state.is_installed and not was_installed:
            log_adoption.take_up(state)

    patch.setattr(log_adoption, "record", record)


def vouch_after_voting(patch: Patch) -> None:
    """A replica that has voted still journals and acknowledges entries of the old primary."""
    real_rules, real_acknowledge = message_rules.rules_of_view, acknowledge.acknowledge

    def is_old(state: ReplicaState, view: int) -> bool:
        return state.status is ReplicaStatus.VIEW_CHANGE and view == state.log_view < state.view

    def rules(state: ReplicaState, message: Any) -> message_rules.Rules:
        is_excepted = isinstance(message, messages.PrepareMessage) and is_old(state, message.view)
        return () if is_excepted else real_rules(state, message)

    def journal(state: ReplicaState, message: messages.PrepareMessage) -> None:
        header, log = message.prepare.header, state.log
        follows = log.head is not None and header.parent == log.head.checksum
        if is_old(state, message.view) and follows and log.has_room:
            state.write(message.prepare)
        elif not is_old(state, message.view):
            start_view.on_primary_at_work(state, message)

    def vouch(state: ReplicaState, entry: LogEntry) -> None:
        real_acknowledge(state, entry)
        is_own = state.log_view % state.replica_count == state.replica
        if entry.durable and state.is_voter and is_old(state, entry.log_view) and not is_own:
            ok = messages.PrepareOkMessage(
                state.configuration.cluster_id,
                state.replica,
                state.log_view,
                entry.header.op,
                entry.header.checksum,
                state.commit_min,
            )
            state.send(state.log_view % state.replica_count, ok)

    patch.setattr(message_rules, "rules_of_view", rules)
    patch.setattr(acknowledge, "acknowledge", vouch)
    known = replica.MESSAGE_HANDLERS[messages.PrepareMessage]
    changed = {**known, ReplicaStatus.VIEW_CHANGE: ((), journal)}
    patch.setitem(replica.MESSAGE_HANDLERS, messages.PrepareMessage, changed)


def vote_with_hearsay(patch: Patch) -> None:
    """A vote names a commit point beyond the log of the replica that votes."""
    real = view_change.own_vote

    def vote(state: ReplicaState) -> Any:
        own = real(state)
        return replace(own, commit=max(own.commit, state.commit_heard))

    patch.setattr(view_change, "own_vote", vote)


def take_hearsay_for_held(patch: Patch) -> None:
    """A replica applies its peers' commit point to its own log, which may be of another view."""
    real = ReplicaState.hear_commit

    def hear(self: ReplicaState, commit: int, source: int) -> None:
        real(self, commit, source)
        if self.status in (ReplicaStatus.VIEW_CHANGE, ReplicaStatus.RECOVERING):
            self.commit_max = max(self.commit_max, min(commit, self.log.op))

    patch.setattr(ReplicaState, "hear_commit", hear)


def deny_what_is_damaged(patch: Patch) -> None:
    """A vote reports a damaged record as one that never existed."""
    real = log_selection.finding

    def finding(vote: Any, op: int, parent: bytes | None) -> Any:
        found = real(vote, op, parent)
        return log_selection.ABSENT if found == log_selection.UNKNOWN else found

    patch.setattr(log_selection, "finding", finding)


def cut_at_the_chosen_head(patch: Patch) -> None:
    """A replica discards entries beyond the chosen log although it knows them to be committed."""

    def discard(state: ReplicaState, installation: Any) -> None:
        if state.log.op > installation.head_op:
            state.log.discard_after(installation.head_op)
            state.emit(vsr.DiscardAfter(installation.head_op))

    unseen(patch)
    patch.setattr(log_adoption, "discard_rest", discard)


def question_the_commit_point(patch: Patch) -> None:
    """A vote offers its last committed entry as one that may be dropped."""
    real = view_change.own_vote

    def vote(state: ReplicaState) -> Any:
        own, entry = real(state), state.log.get(state.commit_max)
        if entry is None or state.commit_max < 2:
            return own
        return replace(own, commit=own.commit - 1)

    patch.setattr(view_change, "own_vote", vote)


def never_forfeit(patch: Patch) -> None:
    """A replica that is elected and lags far behind leads all the same."""
    real = view_change.begin_installation

    def begin(state: ReplicaState, chosen: log_selection.Chosen) -> None:
        with mock.patch.object(view_change, "FORFEIT_LAG_OPS", 1 << 60):
            real(state, chosen)

    patch.setattr(view_change, "begin_installation", begin)


def never_abdicate(patch: Patch) -> None:
    """A primary that nobody answers still sends heartbeats."""
    never(patch, TimeoutName.ABDICATION)


def leave_alone(patch: Patch) -> None:
    """One pre-vote is enough to leave a view."""

    def due_view(state: ReplicaState) -> int | None:
        own = state.pre_votes.get(state.replica)
        return own.target_view if own and own.target_view > state.view else None

    patch.setattr(pre_votes, "due_view", due_view)


def register_twice(patch: Patch) -> None:
    """A registration that arrives again opens another session."""
    real = SessionsMachine._register

    def register(self: SessionsMachine, command: Any, user_id: int, revision: int) -> Any:
        if self.ids_of_nonce.get((user_id, command.nonce)) is not None:
            self.ids_of_nonce.delete((user_id, command.nonce))
        return real(self, command, user_id, revision)

    patch.setattr(SessionsMachine, "_register", register)


def vote_without_memory(patch: Patch) -> None:
    """A replica that lost its disk votes and acknowledges at once."""

    def begin(state: ReplicaState, message: messages.CommitMessage) -> None:
        state.timeouts.stop_all()
        state.change_status(ReplicaStatus.RECOVERING)
        state.persist_superblock()
        state.hear_commit(message.commit, message.from_replica)
        start_view.ask(state, message.view)

    known = replica.MESSAGE_HANDLERS[messages.CommitMessage]
    changed = {**known, ReplicaStatus.BLANK: (message_rules.BOOTSTRAPPED_CLUSTER_RULES, begin)}
    patch.setitem(replica.MESSAGE_HANDLERS, messages.CommitMessage, changed)


def exchange_by_op(patch: Patch) -> None:
    """Cores ask for entries of a chosen log, and take them, by op alone."""
    unknown = (DropRule.NOT_HELD, lambda state, message: state.log.get(message.op) is None)
    receive(patch, messages.RequestPrepareMessage, (unknown,), repair.on_request_prepare)

    def not_wanted(state: ReplicaState, message: messages.RepairMessage) -> bool:
        return not state.may_journal or message.prepare.op not in repair.wanted(state)

    def take(state: ReplicaState, message: messages.RepairMessage) -> None:
        state.write(message.prepare, fills=message.prepare.op in state.log.faulty)

    changed = {DropRule.NOT_LACKING: not_wanted}
    rules = tuple(
        (rule, changed.get(rule, applies)) for rule, applies in message_rules.REPAIR_RULES
    )
    receive(patch, messages.RepairMessage, rules, take)
