"""Of the lines that no seed runs: those that need more than a run has, or something of ours broken.

The end of this table names kinds of statements.
"""

from __future__ import annotations

from typing import Final

from testkit.world.reached import Unreached

_APP: Final = "coordinator/app"
_GATEWAY: Final = "coordinator/gateway"
_JOURNAL: Final = "coordinator/journal"
_PEERS: Final = "coordinator/peers"
_REPLICA: Final = "coordinator/replica"
_SNAPSHOT: Final = "coordinator/snapshot"

BEYOND_A_RUN: Final[tuple[Unreached, ...]] = (
    Unreached(
        "Amounts that no run comes to: queues, caches, windows and budgets at their limits, and"
        " work that is cut into slices because it is long.",
        "tests/coordinator",
        (
            f"{_APP}/digest_claims.py DigestClaims._compare",
            f"{_APP}/services.py ServiceLinks._decode",
            "coordinator/base/slices.py SlicedWork.finish",
            f"{_GATEWAY}/answers.py AnswerQueue.is_full",
            f"{_GATEWAY}/audit_records.py _summed_up",
            f"{_GATEWAY}/cluster.py ClusterStage._follow_with_digests",
            f"{_GATEWAY}/principal.py Authenticator._verify",
            f"{_GATEWAY}/quotas.py Account.charge",
            f"{_GATEWAY}/quotas.py Quotas.check",
            f"{_GATEWAY}/quotas.py Quotas._open",
            f"{_GATEWAY}/registration.py SessionRoom._end",
            f"{_GATEWAY}/replies.py _render",
            f"{_GATEWAY}/shares.py Shares._check_replies",
            f"{_GATEWAY}/shares.py Shares._evict_worst",
            f"{_GATEWAY}/slow_readers.py end_in_time",
            f"{_GATEWAY}/status_digests.py _walked_for_a_slice",
            f"{_GATEWAY}/timers.py SessionTimers.evict",
            f"{_GATEWAY}/timers.py SessionTimers.spare",
            f"{_GATEWAY}/registration.py SessionRoom.make",
            f"{_GATEWAY}/snapshots.py SnapshotReads.query",
            f"{_GATEWAY}/status_digests.py StatusDigests._walk_sessions",
            f"{_GATEWAY}/status_digests.py StatusDigests._tell",
            "coordinator/base/slices.py SlicedWork.go_on",
            "coordinator/mux/applied_digests.py AppliedDigests._put",
            f"{_PEERS}/link.py PeerLink.send",
            f"{_REPLICA}/apply_queue.py ApplyQueue._advance",
            f"{_REPLICA}/apply_queue.py ApplyQueue._finish",
            f"{_REPLICA}/batcher.py Batcher.add",
            f"{_REPLICA}/mux_effects.py MuxEffects._go_on",
            f"{_REPLICA}/writer.py _read_chunk",
            f"{_SNAPSHOT}/section_writer.py SectionWriter.*",
            f"{_SNAPSHOT}/sections.py CutSections._blocks",
            f"{_SNAPSHOT}/sections.py _compressed",
            f"{_SNAPSHOT}/compaction.py _first_of_tail",
            f"{_SNAPSHOT}/compaction.py _write",
            f"{_SNAPSHOT}/work.py _NothingWritten.write",
            "coordinator/stages/client.py StageClient._may_send",
            "coordinator/mux/replies.py ReplyTable.worst_session",
            "coordinator/mux/replies.py ReplyTable.holder_count",
            "coordinator/mux/replies.py ReplyTable.bytes_of_user",
            "coordinator/mux/replies.py ReplyTable.bytes_of_session",
            f"{_PEERS}/known_disks.py _Replica.remember",
            f"{_PEERS}/outbox.py Outbox.put",
            f"{_PEERS}/outbox.py Outbox._take",
            f"{_PEERS}/outbox.py Outbox._drop",
            f"{_REPLICA}/batcher.py _Builder.takes",
            f"{_REPLICA}/batcher.py TurnQueues.hand_out",
            f"{_REPLICA}/batcher.py TurnQueues._hand_out_turn",
            f"{_REPLICA}/batcher.py Batcher._hand_out.counted",
            f"{_REPLICA}/fair_queue.py FairQueue.take",
            f"{_REPLICA}/mux_effects.py MuxEffects._begin_slice",
            f"{_REPLICA}/writer.py JournalWriter.read_committed",
            "coordinator/stages/outgoing.py take_together",
            "coordinator/vsr/repair.py wanted",
        ),
        is_rare=True,
    ),
    Unreached(
        "Long work between two steps of which the event loop gets its turn.",
        "tests/coordinator/base/test_slices.py",
        ends=r"yield$",
        is_rare=True,
    ),
    Unreached(
        "Reads for which a service has no time, and which are put back.",
        "tests/coordinator/replica/test_fair_reads.py",
        (
            f"{_REPLICA}/fair_queue.py FairQueue.put_back",
            f"{_REPLICA}/lane.py Lane.postponed",
            f"{_REPLICA}/lane.py Lane._done",
            f"{_REPLICA}/reads.py ReplicaReads.carry_out",
            f"{_REPLICA}/reads.py ReplicaReads.postponed",
            "coordinator/mux/read_run.py QuerySegment.absorb",
            "coordinator/mux/read_run.py ReadWork.postpone",
        ),
        is_rare=True,
    ),
    Unreached(
        "Signs of life that a service refuses because others in the same read used up its bytes or"
        " its time: each is asked alone. The members of a run are too few.",
        "tests/coordinator/gateway/test_gathered_signs.py",
        (
            f"{_GATEWAY}/gathered_signs.py GatheredSigns._answered",
            f"{_GATEWAY}/gathered_signs.py GatheredSigns._ask_alone",
            f"{_GATEWAY}/gathered_signs.py _pass_on",
            f"{_GATEWAY}/reads.py ReadStarter._start_alone",
        ),
        is_rare=True,
    ),
    Unreached(
        "Requests and messages that cannot be decoded: of programs that are not ours.",
        "tests/coordinator",
        (
            f"{_GATEWAY}/audit_records.py _kept_items",
            f"{_GATEWAY}/audit_records.py unclaimed",
            f"{_GATEWAY}/audit.py Audit.unary",
            f"{_GATEWAY}/registration.py SessionRoom._is_known",
            "coordinator/mux/catalog_decisions.py malformed",
            f"{_PEERS}/link.py PeerLink.attempt",
            f"{_PEERS}/listener.py Listener.take",
            f"{_PEERS}/listener.py _first",
        ),
        is_rare=True,
    ),
    Unreached(
        "Lone replicas whose journal or superblock lost what nobody else has: they halt.",
        "tests/coordinator/vsr",
        (
            "coordinator/vsr/startup.py recover_alone",
            "coordinator/vsr/startup.py halt",
            "coordinator/vsr/startup.py halt_short_log",
            "coordinator/vsr/startup.py halt_base_beyond_log",
            "coordinator/vsr/startup.py halt_without_superblock",
            "coordinator/vsr/startup.py on_start",
            f"{_JOURNAL}/errors.py _way_out",
            f"{_JOURNAL}/plan.py make_plan",
        ),
        is_rare=True,
    ),
    Unreached(
        "Clients without the internet protocol, or with version 6 of it. Hosts of a world have"
        " version 4.",
        "tests/coordinator/gateway/test_public_shares.py",
        (f"{_GATEWAY}/peer_address.py address_of",),
    ),
    Unreached(
        "The supervisor's pipe, which is closed.",
        "tests/coordinator/app/test_leadership.py",
        (
            f"{_APP}/leadership.py Leadership._tell_progress",
            f"{_APP}/leadership.py Leadership._became_ready",
        ),
    ),
    Unreached(
        "The port for probes alone. Probes of a world come to the port of all callers.",
        "tests/deploy/test_pod_starts.py",
        (
            f"{_APP}/face.py PublicFace.__init__",
            f"{_GATEWAY}/server.py GatewayServer.start",
            f"{_GATEWAY}/server.py GatewayServer.stop",
        ),
    ),
    Unreached(
        "Clusters that draw their id. Those of a world are given it.",
        "tests/coordinator/app/test_coordinator_flags.py",
        (f"{_APP}/flag_values.py cluster_id_of",),
    ),
    Unreached(
        "File systems that do not say in time how much room they have, or refuse to.",
        "tests/coordinator/telemetry/test_metrics_page.py",
        (f"{_APP}/gauges.py _Disk.room",),
    ),
    Unreached(
        "Names of hosts that lead nowhere. Each name of a world has an address.",
        "tests/replicas/test_changed_names.py",
        (f"{_APP}/members.py Members._status_of",),
    ),
    Unreached(
        "Telemetry in other settings, and trace parents of other programs. A world has all of it,"
        " or none.",
        "tests/coordinator",
        (
            f"{_GATEWAY}/telemetry.py GatewayWatch.unary",
            f"{_GATEWAY}/telemetry.py GatewayWatch.packed",
            f"{_GATEWAY}/telemetry.py GatewayWatch._followed",
            "coordinator/telemetry/watch.py ReplicaWatch._keeps_prepare",
        ),
        is_rare=True,
    ),
    Unreached(
        "An entry of which no copy is intact. In a world there is one of each.",
        "tests/coordinator/vsr",
        (f"{_APP}/members.py Members._stuck", "coordinator/vsr/view_change.py choose_log"),
    ),
    Unreached(
        "Peers that answer what no build answers, or end a stream in order.",
        "tests/coordinator/peers",
        (
            f"{_PEERS}/fetch.py _words",
            f"{_PEERS}/link.py PeerLink._stream",
            f"{_PEERS}/link.py PeerLink._say_hello",
            f"{_PEERS}/link.py _read_to_end",
        ),
    ),
    Unreached(
        "Digests, denials and long revisions that are asked for at a rare moment.",
        "tests/coordinator/gateway",
        (
            f"{_GATEWAY}/audit.py Audit.request",
            f"{_GATEWAY}/cluster.py _Asked.refuse",
            f"{_GATEWAY}/cluster.py ClusterStage._follow_with_digests.tell",
            f"{_GATEWAY}/kept_changes.py KeptChanges._long",
            f"{_GATEWAY}/status_digests.py StatusDigests._domains_walked",
        ),
        is_rare=True,
    ),
    Unreached(
        "A replica without metrics, and a login that is refused as a whole.",
        "tests/coordinator/telemetry/test_call_metrics.py",
        (
            f"{_GATEWAY}/telemetry.py GatewayWatch.timed",
            f"{_GATEWAY}/telemetry.py GatewayWatch.took",
            "coordinator/telemetry/calls.py _reason_of",
        ),
        is_rare=True,
    ),
    Unreached(
        "A replica that gets its vote back between two steps of its start.",
        "tests/coordinator/app/test_leadership.py",
        ("coordinator/app/leadership.py Leadership.applied",),
        is_rare=True,
    ),
    Unreached(
        "The file that says that a coordinator serves, taken back at its end.",
        "tests/coordinator/app",
        ("coordinator/app/outside.py remove_ready_file",),
        is_rare=True,
    ),
    Unreached(
        "Damage of an entry that a later view had replaced, and of a file that was repaired.",
        "tests/coordinator",
        (
            "coordinator/journal/recovery.py Evidence.superseded",
            f"{_SNAPSHOT}/copies.py CopyVerdict.__str__",
        ),
        is_rare=True,
    ),
    Unreached(
        "Defects of a replica, which ends or says so. A world in which one shows has failed.",
        "tests/coordinator",
        (
            f"{_GATEWAY}/answers.py AnswerQueue._made",
            f"{_GATEWAY}/change_feed.py ChangeFeed._ended",
            f"{_GATEWAY}/status_digests.py _tell_one",
            f"{_GATEWAY}/submit.py _Stream._answer",
            f"{_GATEWAY}/submit.py _Stream._command_answer",
            f"{_GATEWAY}/submit.py _Stream._read_answer",
            f"{_PEERS}/peers.py Peers.failed",
            f"{_PEERS}/peers.py Peers._link_ended",
            f"{_REPLICA}/driver.py Driver._ended",
            f"{_SNAPSHOT}/values.py _check_generation",
            f"{_SNAPSHOT}/values.py _check_known",
            f"{_SNAPSHOT}/values.py _check_same",
        ),
    ),
    # --- Kinds of statements ---
    Unreached(
        "What one part of a build never says to another, nor to itself: the process ends, or the"
        " caller has a defect.",
        "tests/coordinator",
        ends=r"(raise|return) (\w+\.)?(MuxError|AssertionError|InvariantViolation"
        r"|OrchestrationError|ValueError|HaltedError|GenerationFailed|ReplayDivergedError|BaseRefusedError"
        r"|WrongServiceError|WrongDirectoryError|ItemLogDroppedError|FencedError|mismatch)\b"
        r"|raise nobody_is_right|check\(",
    ),
    Unreached(
        "Bytes that no build has written, in files or from peers. What a disk of a world loses or"
        " changes shows in a checksum before.",
        "tests/coordinator",
        ends=r"raise (FormatError|FormatVersionError|CorruptJournal|CorruptRecord|_UndecodableError"
        r"|WrongCluster|WrongReplica|RestoreError|Superblock\w+|_quorum_lost|JournalNotFound"
        r"|MissingSegment|ConflictingManifest|GenerationDamaged|DirectoriesUnused|CompactionFailed"
        r"|TransferFailed|_WrongAnswerError|PeerFileUnavailable|NewerBuildError)\b",
    ),
    Unreached(
        "Requests that are refused: of programs that are not ours, or beyond limits that the few"
        " callers of a run do not reach.",
        "tests/coordinator/gateway",
        ends=r"(raise|return) (Refusal|_?too_\w+|full|_exceeded|_unacknowledged|_evicted|_replaced"
        r"|_unconfirmed|outcome_unknown|_overloaded|_undecided|SessionRefused|self\._beyond"
        r"|(self\.|self\._)?codec\.encode_refusal|refused_read|_unreadable|WindowFull"
        r"|_without_answer|self\.refusal_of|_bad_transaction|_malformed)\b",
    ),
    Unreached(
        "Errors that are passed on, some of them with the name of the file or of the call.",
        "tests/coordinator",
        ends=r"raise$|raise .* from (error|None)$|raise (error|failure)\b",
    ),
    Unreached(
        "Errors of disks that no disk of a world makes.",
        "tests/coordinator",
        ends=r"raise (self\._fail\w*|JournalFailed|CopyNotWritten|CopiesFailed|SnapshotNoSpace"
        r"|NoIntactCopy|no_space_or_same|_not_written|NoSpace)\b",
    ),
)
