"""The lines of `coordinator/` that no seed of the world runs, each with its reason.

`python -m testkit.world.coverage` holds this table against what seeds run. Each line that is not
run has to be in it, and each place in it has to have such a line. Only what a seed cannot run is
named here. What a longer campaign may run is not.
"""

from __future__ import annotations

from typing import Final

from testkit.world.reached import MODULE, Unreached

_APP: Final = "coordinator/app"
_GATEWAY: Final = "coordinator/gateway"
_JOURNAL: Final = "coordinator/journal"
_PEERS: Final = "coordinator/peers"
_REPLICA: Final = "coordinator/replica"
_SNAPSHOT: Final = "coordinator/snapshot"

TABLE: Final[tuple[Unreached, ...]] = (
    Unreached(
        "The program around the coordinator: signals, exit codes, collection of garbage, the files"
        " for tools. A world runs the coordinator itself.",
        "tests/processes",
        (
            f"{_APP}/main.py main",
            f"{_APP}/main.py _allow_connections",
            f"{_APP}/main.py serve",
            f"{_APP}/main.py _telemetry",
            f"{_APP}/main.py _garbage_collection",
            f"{_APP}/outside.py write_ready_file",
            f"{_APP}/outside.py remove_ready_file",
            f"{_REPLICA}/data_directory.py open_replica",
        ),
    ),
    Unreached(
        "Flags that are refused. A world gives flags that are accepted.",
        "tests/coordinator/app/test_coordinator_flags.py",
        (
            f"{_APP}/config.py",
            f"{_PEERS}/settings.py settings_of",
            f"{_PEERS}/settings.py standby_addresses",
            f"{_PEERS}/settings.py _voters",
            f"{_PEERS}/settings.py _addresses",
            f"{_PEERS}/settings.py _check_address",
            f"{_APP}/face.py _audit_log",
        ),
    ),
    Unreached(
        "Calls of the operating system for files. The disk of a world is in memory.",
        "tests/coordinator/journal/test_file_storage.py",
        (
            "coordinator/storage.py FileStorage.*",
            "coordinator/storage.py DescriptorFile.*",
            "coordinator/storage.py DescriptorLock.*",
            "coordinator/storage.py _process_id",
        ),
    ),
    Unreached(
        "The lock of a directory that another process holds. A machine of a world has one"
        " coordinator at a time.",
        "tests/coordinator/journal/test_directory_crash.py",
        (
            "coordinator/storage.py DirectoryInUse.__init__",
            f"{_SNAPSHOT}/opening.py _lock",
            f"{_SNAPSHOT}/opening.py _lock_one",
            f"{_SNAPSHOT}/opening.py _lock_after_a_crash",
            f"{_SNAPSHOT}/opening.py _is_alive",
        ),
    ),
    Unreached(
        "The journal's thread. A world has one thread, and calls that report later.",
        "tests/processes",
        (
            f"{_REPLICA}/worker_thread.py DaemonThread.*",
            f"{_REPLICA}/worker_thread.py _succeed",
            f"{_REPLICA}/worker_thread.py _fail",
        ),
    ),
    Unreached(
        "The processes that write and merge snapshots. A world writes and merges in lanes of the"
        " coordinator.",
        "tests/coordinator/snapshot/files/test_writer_process.py",
        (
            f"{_SNAPSHOT}/writer_process.py",
            f"{_SNAPSHOT}/writer_server.py",
            f"{_SNAPSHOT}/compaction.py ProcessCompactor.*",
            f"{_SNAPSHOT}/compaction.py CompactionJob.to_json",
            f"{_SNAPSHOT}/compaction.py job_from_json",
            f"{_SNAPSHOT}/compaction.py answer_of",
            f"{_SNAPSHOT}/compaction.py answer_of.report",
            f"{_SNAPSHOT}/compaction.py main",
            f"{_SNAPSHOT}/compaction.py {MODULE}",
        ),
    ),
    Unreached(
        "TLS. Nothing in a world is encrypted.",
        "tests/coordinator/peers/test_peer_tls.py",
        (
            "coordinator/base/certificates.py",
            "coordinator/base/pem.py",
            f"{_APP}/certificates.py",
            f"{_GATEWAY}/server.py gateway_certificates",
            f"{_PEERS}/tls.py",
            f"{_PEERS}/settings.py _tls",
            f"{_PEERS}/listener.py _check_certificate",
        ),
    ),
    Unreached(
        "Addresses that are taken by another process. Addresses of a world are free.",
        "tests/processes",
        (
            f"{_GATEWAY}/server.py _check_is_free",
            f"{_GATEWAY}/server.py GatewayServer.listen",
            f"{_PEERS}/peers.py bind",
        ),
    ),
    Unreached(
        "The view of the catalog in SQLite. A world writes none, so it never fails either.",
        "tests/coordinator/snapshot/orchestration/test_snapshot_store.py",
        (
            f"{_SNAPSHOT}/store.py rebuild",
            f"{_SNAPSHOT}/store.py _replace",
            f"{_SNAPSHOT}/store.py CatalogViewWriter._failed",
            f"{_SNAPSHOT}/store.py CatalogViewWriter._succeeded",
            f"{_APP}/snapshots.py SnapshotAssembly._view_is_stale",
            f"{_APP}/snapshots.py SnapshotAssembly._view_is_current",
        ),
    ),
    Unreached(
        "Records of the audit log that cannot be made. In a world such a record is a violation.",
        "tests/coordinator/gateway/test_answers_looked_at.py",
        (
            f"{_GATEWAY}/audit.py _looking_on.told",
            f"{_GATEWAY}/audit.py Audit.lose",
        ),
    ),
    Unreached(
        "Replicas of other builds, clusters and configurations. A world has one of each.",
        "tests/coordinator/peers",
        (
            f"{_PEERS}/hello.py _other_wire_version",
            f"{_PEERS}/hello.py _other_replica_count",
            f"{_PEERS}/hello.py _other_standby_count",
            f"{_PEERS}/hello.py _other_configuration",
            f"{_PEERS}/hello.py _unknown_replica",
            f"{_PEERS}/hello.py _own_replica",
            f"{_PEERS}/hello.py _wrong_addressee",
            f"{_PEERS}/hello.py _old_build",
            "coordinator/vsr/state.py Configuration.__post_init__",
        ),
    ),
    Unreached(
        "Directories of other clusters, replicas or builds, and directories in pieces. A world"
        " opens what it made, or an older state of it.",
        "tests/coordinator/journal",
        (
            f"{_JOURNAL}/errors.py WrongCluster.__init__",
            f"{_JOURNAL}/errors.py WrongReplica.__init__",
            f"{_JOURNAL}/errors.py JournalNotFound.__init__",
            f"{_REPLICA}/data_directory.py _check_level",
            f"{_REPLICA}/data_directory.py _cluster_of_journal",
            f"{_REPLICA}/data_directory.py _check_identity",
            f"{_REPLICA}/data_directory.py _check_role",
            f"{_SNAPSHOT}/identity.py decode_identity",
            f"{_SNAPSHOT}/identity.py check_directories",
            f"{_SNAPSHOT}/identity.py _check_belongs",
            f"{_SNAPSHOT}/identity.py _check_may_be_written",
            f"{_SNAPSHOT}/transfer.py NewerBuildError.__init__",
            f"{_APP}/snapshot_repair.py SnapshotRepair._is_too_new",
        ),
    ),
    Unreached(
        "Snapshots that contradict themselves although every checksum is right. Writers of a world"
        " have no defect.",
        "tests/coordinator/mux",
        (
            "coordinator/mux/restoring.py checked_sessions",
            "coordinator/mux/restoring.py checked_catalog",
            "coordinator/mux/restoring.py _check_sessions",
            "coordinator/mux/restoring.py _check_minimums",
            "coordinator/mux/restoring.py _check_reply",
            "coordinator/mux/restoring.py _check_window",
            "coordinator/mux/restoring.py _check_snapshot",
            "coordinator/mux/restoring.py _check_own_cut",
            "coordinator/mux/restoring.py _check_level",
            "coordinator/mux/restoring.py _check_description",
        ),
    ),
    Unreached(
        "Replicas that one log led to different states. Services of a world have no defect;"
        " `test_world_divergence.py` plants one.",
        "tests/testkit/world/test_world_divergence.py",
        (f"{_SNAPSHOT}/divergence.py",),
    ),
    Unreached(
        "Sessions that nobody used for ten minutes. A run of a world has less.",
        "tests/coordinator/gateway/test_session_timers.py",
        (
            f"{_GATEWAY}/timers.py SessionTimers._propose_end",
            "coordinator/mux/sessions.py SessionsMachine._expire",
        ),
    ),
    Unreached(
        "What only tests and debuggers ask for.",
        "tests/coordinator",
        (
            "coordinator/__main__.py",
            "coordinator/base/command_traces.py CommandTrace.trace_id",
            f"{_GATEWAY}/snapshots.py SnapshotReads.waiting",
            f"{_JOURNAL}/journal.py Journal.headers",
            "coordinator/mux/catalog.py CatalogMachine.entities",
            "coordinator/mux/mux.py at_once",
            "coordinator/mux/mux.py Mux.op",
            "coordinator/mux/mux.py Mux.unapplied",
            "coordinator/mux/mux.py Mux.commit",
            f"{_SNAPSHOT}/verify.py LocalFileVerdict.is_intact",
            "coordinator/vsr/state.py no_jitter",
            f"{_GATEWAY}/quotas.py Quotas.__len__",
            f"{_GATEWAY}/shares.py Shares.__len__",
            f"{_REPLICA}/proposals.py Proposals.__len__",
            f"{_REPLICA}/reads.py ReplicaReads.__len__",
            f"{_SNAPSHOT}/copies.py CopyVerdict.__str__",
            "coordinator/stages/item_log.py ItemLog.__len__",
            "coordinator/vsr/replica.py Replica.__repr__",
        ),
    ),
    Unreached(
        "The one who reads the snapshots of a replica that is not in service.",
        "tests/coordinator/app/test_own_status.py",
        (f"{_GATEWAY}/stored_catalog.py", f"{_GATEWAY}/unary.py UnaryCalls._stored"),
    ),
    Unreached(
        "Feature levels that are raised. A world begins with the highest one.",
        "tests/coordinator/gateway/test_feature_levels.py",
        (
            "coordinator/mux/catalog.py CatalogMachine._raise_level",
            "coordinator/stages/catalog_codec.py encode_catalog_result",
            "coordinator/stages/entities.py _feature_level",
            "coordinator/stages/entities.py _feature_level_of",
            f"{_APP}/leadership.py Leadership._look_at_level",
        ),
    ),
    Unreached(
        "Replies with words, which builds of feature level 1 kept.",
        "tests/coordinator/snapshot/files/test_inner_sections.py",
        (
            f"{_SNAPSHOT}/inner_sections.py _replies_without_texts",
            f"{_SNAPSHOT}/inner_sections.py _without_texts",
            "coordinator/mux/requests.py SessionsStage._reasons_alone",
            "coordinator/stages/errors.py without_text",
        ),
    ),
    Unreached(
        "Services that die at one command, are busy for minutes, or answer wrongly; item logs that"
        " outgrow their memory.",
        "tests/coordinator/stages",
        (
            "coordinator/stages/poison.py",
            "coordinator/stages/item_log.py ItemLog._drop",
            "coordinator/stages/item_log.py ItemLog._set_dropped",
            f"{_APP}/services.py ServiceLinks._gave_up",
            f"{_APP}/services.py ServiceLinks._busy",
            f"{_APP}/services.py ServiceLinks._item_log_dropped",
            f"{_APP}/services.py ServiceLinks._tell_defect",
        ),
    ),
    Unreached(
        "Superblocks that no core writes.",
        "tests/coordinator/journal/test_superblock_layout.py",
        (
            f"{_JOURNAL}/superblock.py invalid_state",
            f"{_JOURNAL}/superblock.py regression",
        ),
    ),
    Unreached(
        "A snapshot without an intact copy that no other replica has at once.",
        "tests/replicas/test_replicas_snapshots.py",
        (
            f"{_APP}/snapshot_repair.py SnapshotRepair._newer",
            f"{_APP}/snapshot_repair.py SnapshotRepair._mend",
            f"{_APP}/snapshot_repair.py SnapshotRepair._is_mended",
        ),
    ),
    Unreached(
        "Amounts that no run comes to: queues, caches, windows and budgets at their limits, and"
        " work that is cut into slices because it is long.",
        "tests/coordinator",
        (
            f"{_APP}/digest_claims.py DigestClaims._compare",
            f"{_APP}/digest_claims.py _keep_lowest",
            f"{_APP}/services.py ServiceLinks._decode",
            "coordinator/base/slices.py SlicedWork.finish",
            f"{_GATEWAY}/answers.py AnswerQueue.is_full",
            f"{_GATEWAY}/answers.py AnswerQueue.take",
            f"{_GATEWAY}/principal.py Authenticator._verify",
            f"{_GATEWAY}/quotas.py Account.charge",
            f"{_GATEWAY}/quotas.py Quotas.check",
            f"{_GATEWAY}/quotas.py Quotas._open",
            f"{_GATEWAY}/registration.py SessionRoom._end",
            f"{_GATEWAY}/shares.py Shares._check_replies",
            f"{_GATEWAY}/shares.py Shares._evict_worst",
            f"{_GATEWAY}/slow_readers.py end_in_time",
            f"{_GATEWAY}/status_digests.py _walked_for_a_slice",
            f"{_GATEWAY}/timers.py SessionTimers.evict",
            f"{_GATEWAY}/timers.py SessionTimers.spare",
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
            "coordinator/telemetry/snapshots.py SnapshotWatch.cut_taken",
            "coordinator/vsr/normal.py refusal_of_batch",
            "coordinator/vsr/repair.py wanted",
        ),
    ),
    Unreached(
        "Long work between two steps of which the event loop gets its turn.",
        "tests/coordinator/base/test_slices.py",
        ends=r"yield$",
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
    ),
    Unreached(
        "Requests and messages that cannot be decoded: of programs that are not ours.",
        "tests/coordinator",
        (
            f"{_GATEWAY}/audit_records.py _kept_items",
            f"{_GATEWAY}/audit_records.py _part",
            f"{_GATEWAY}/audit_records.py unclaimed",
            f"{_GATEWAY}/audit.py Audit.unary",
            f"{_GATEWAY}/command_sizes.py check_commands",
            f"{_GATEWAY}/local_reads.py parsed",
            f"{_GATEWAY}/normalize.py _portions",
            f"{_GATEWAY}/registration.py SessionRoom._is_known",
            "coordinator/mux/catalog_decisions.py malformed",
            f"{_PEERS}/codec.py decode_packet",
            f"{_PEERS}/codec.py _UndecodableError.__init__",
            f"{_PEERS}/link.py PeerLink.attempt",
            f"{_PEERS}/listener.py Listener._dropped",
            f"{_PEERS}/listener.py _first",
        ),
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
        ),
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
