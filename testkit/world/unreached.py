"""The lines of `coordinator/` that no seed of the world runs, each with its reason.

`python -m testkit.world.coverage` holds this table against what seeds run. Each line that is not
run has to be in it, and each place in it has to have such a line. This file and the next name what
a seed cannot run. What a longer campaign may run is in `unreached_moments`, if it is rare.
"""

from __future__ import annotations

from typing import Final

from testkit.world.reached import MODULE, Unreached
from testkit.world.unreached_beyond import BEYOND_A_RUN
from testkit.world.unreached_moments import RARE

_APP: Final = "coordinator/app"
_GATEWAY: Final = "coordinator/gateway"
_JOURNAL: Final = "coordinator/journal"
_PEERS: Final = "coordinator/peers"
_REPLICA: Final = "coordinator/replica"
_SNAPSHOT: Final = "coordinator/snapshot"

TABLE: Final[tuple[Unreached, ...]] = (
    Unreached(
        "The beginning of the program, of a start that is not refused, and exit codes. A world runs"
        " what comes then, on files.",
        "tests/processes",
        (
            f"{_APP}/main.py main",
            f"{_APP}/main.py _allow_connections",
            f"{_APP}/main.py serve",
            f"{_APP}/main.py _telemetry",
            f"{_REPLICA}/data_directory.py open_replica",
            f"{_APP}/snapshot_repair.py mend_of",
        ),
        is_rare=True,
    ),
    Unreached(
        "Flags that are refused. A run on files gives some of them.",
        "tests/coordinator/app/test_coordinator_flags.py",
        (
            f"{_APP}/config.py",
            f"{_APP}/journal_settings.py",
            f"{_PEERS}/settings.py settings_of",
            f"{_PEERS}/settings.py standby_addresses",
            f"{_PEERS}/settings.py _voters",
            f"{_PEERS}/settings.py _addresses",
            f"{_PEERS}/settings.py _check_address",
            f"{_APP}/face.py _audit_log",
        ),
        is_rare=True,
    ),
    Unreached(
        "The console: a page over HTTP, for browsers. No world has one.",
        "tests/coordinator/console",
        (
            "coordinator/console/",
            f"{_APP}/face.py PublicFace._make_console",
            f"{_APP}/face.py PublicFace.start",
            f"{_APP}/face.py PublicFace.stop",
        ),
        is_rare=True,
    ),
    Unreached(
        "Calls of the operating system for files that fail. No disk fails in a run on files.",
        "tests/coordinator/journal/test_file_storage.py",
        (
            "coordinator/storage.py FileStorage.*",
            "coordinator/storage.py DescriptorFile.*",
            "coordinator/storage.py _process_id",
        ),
        is_rare=True,
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
        is_rare=True,
    ),
    Unreached(
        "The processes that write and merge snapshots, where one meets an error. On files a world"
        " runs them, and kills them between two calls.",
        "tests/coordinator/snapshot/files/test_writer_process.py",
        (
            f"{_SNAPSHOT}/writer_process.py",
            f"{_SNAPSHOT}/writer_server.py",
            f"{_SNAPSHOT}/compaction.py ProcessCompactor.*",
            f"{_SNAPSHOT}/compaction.py answer_of",
            f"{_SNAPSHOT}/compaction.py answer_of.report",
            f"{_SNAPSHOT}/compaction.py {MODULE}",
        ),
        is_rare=True,
    ),
    Unreached(
        "The process of the past. A world has its conversation without another process.",
        "tests/processes/test_past_reads.py",
        (
            "coordinator/history/process.py PastProcess.*",
            "coordinator/history/process.py encode_message",
            "coordinator/history/process.py start_past",
            "coordinator/history/builder.py PastBuilder._started",
        ),
    ),
    Unreached(
        "Certificates in encodings that OpenSSL takes and nobody issues, and files that change"
        " while they are read.",
        "tests/coordinator/peers/test_peer_tls.py",
        (
            "coordinator/base/credentials.py",
            f"{_PEERS}/tls.py",
            f"{_PEERS}/settings.py _tls",
        ),
        is_rare=True,
    ),
    Unreached(
        "Services over a network. Those of a world are on sockets of their machine.",
        "tests/coordinator/stages/test_service_encryption.py",
        (
            "coordinator/stages/service_settings.py files_of",
            "coordinator/stages/channel.py ServiceChannel.renew",
            "coordinator/stages/channel.py ServiceChannel.explained",
            "coordinator/stages/channel.py ServiceChannel.present",
            "coordinator/stages/client.py StageClient._tell_unreachable",
            f"{_APP}/services.py ServiceLinks._credentials",
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
        "Records of the audit log that cannot be made. In a world such a record is a violation.",
        "tests/coordinator/gateway/test_answers_looked_at.py",
        (
            f"{_GATEWAY}/audit.py _looking_on.told",
            f"{_GATEWAY}/audit.py Audit.lose",
        ),
    ),
    Unreached(
        "Replicas of other builds, and configurations in conflict. A world has one of each; rude"
        " peers say hello as others.",
        "tests/coordinator/peers",
        (
            f"{_PEERS}/hello.py _old_build",
            f"{_PEERS}/hello.py judge",
            f"{_PEERS}/hello.py judge_answer",
            "coordinator/vsr/state.py Configuration.__post_init__",
        ),
        is_rare=True,
    ),
    Unreached(
        "Directories of other clusters, replicas or builds, and directories in pieces. A world"
        " opens what it made, or an older state of it.",
        "tests/coordinator/journal",
        (
            f"{_JOURNAL}/errors.py WrongCluster.__init__",
            f"{_JOURNAL}/errors.py WrongReplica.__init__",
            f"{_JOURNAL}/errors.py JournalNotFound.__init__",
            f"{_JOURNAL}/errors.py CorruptJournal.__init__",
            f"{_JOURNAL}/errors.py MissingSegment.__init__",
            f"{_JOURNAL}/superblock.py _quorum_lost",
            f"{_SNAPSHOT}/errors.py DirectoriesUnused.__init__",
            f"{_SNAPSHOT}/layout.py ManifestCheck._belongs_elsewhere",
            f"{_REPLICA}/data_directory.py _check_base",
            f"{_REPLICA}/journal_opening.py cluster_of_journal",
            f"{_REPLICA}/data_directory.py _check_identity",
            f"{_REPLICA}/data_directory.py _check_role",
            f"{_SNAPSHOT}/identity.py decode_identity",
            f"{_SNAPSHOT}/identity.py check_directories",
            f"{_SNAPSHOT}/identity.py _check_belongs",
            f"{_SNAPSHOT}/identity.py _check_may_be_written",
            f"{_SNAPSHOT}/transfer.py NewerBuildError.__init__",
            f"{_APP}/snapshot_repair.py SnapshotRepair._is_too_new",
        ),
        is_rare=True,
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
            f"{_SNAPSHOT}/errors.py GenerationDamaged.__init__",
            f"{_SNAPSHOT}/verify.py difference",
            f"{_SNAPSHOT}/verify.py problems_of",
        ),
    ),
    Unreached(
        "Replicas that one log led to different states. Services of a world have no defect;"
        " `test_world_divergence.py` plants one.",
        "tests/testkit/world/test_world_divergence.py",
        (
            f"{_SNAPSHOT}/divergence.py",
            f"{_SNAPSHOT}/agreement.py judge",
            f"{_SNAPSHOT}/agreement.py _differing",
            f"{_APP}/digest_claims.py DigestClaims.heard",
        ),
    ),
    Unreached(
        "Sessions that nobody used for ten minutes. A run of a world has less.",
        "tests/coordinator/gateway/test_session_timers.py",
        (
            f"{_GATEWAY}/timers.py SessionTimers._propose_end",
            "coordinator/mux/sessions.py SessionsMachine._expire",
            f"{_GATEWAY}/timers.py SessionTimers.check",
            "coordinator/mux/sessions.py SessionsMachine.apply",
            "coordinator/stages/codec.py _parse_expire",
        ),
    ),
    Unreached(
        "Access tokens that are used for longer than an hour. A run of a world has less.",
        "tests/processes/test_refused_calls.py",
        (f"{_GATEWAY}/principal.py Authenticator.check_fresh",),
    ),
    Unreached(
        "Watches that are open when the access token of their user ends, after an hour.",
        "tests/coordinator/gateway/test_watch_endings.py",
        (
            f"{_GATEWAY}/principal.py expired",
            f"{_GATEWAY}/watches.py Watches._serve",
        ),
    ),
    Unreached(
        "What only tests and debuggers ask for.",
        "tests/coordinator",
        (
            "coordinator/__main__.py",
            "coordinator/base/command_traces.py CommandTrace.trace_id",
            f"{_GATEWAY}/member_notices.py MemberNotices.__len__",
            f"{_GATEWAY}/snapshots.py SnapshotReads.waiting",
            f"{_JOURNAL}/held_log.py HeldLog.headers",
            "coordinator/mux/catalog.py CatalogMachine.entities",
            f"{_SNAPSHOT}/verify.py LocalFileVerdict.is_intact",
            "coordinator/vsr/state.py no_jitter",
            f"{_GATEWAY}/quotas.py Quotas.__len__",
            f"{_GATEWAY}/shares.py Shares.__len__",
            f"{_REPLICA}/proposals.py Proposals.__len__",
            f"{_REPLICA}/reads.py ReplicaReads.__len__",
            "coordinator/stages/item_log.py ItemLog.__len__",
            "coordinator/vsr/replica.py Replica.__repr__",
            f"{_SNAPSHOT}/pinned.py PinnedGeneration.__enter__",
            f"{_SNAPSHOT}/pinned.py PinnedGeneration.__exit__",
            f"{_JOURNAL}/superblock.py Superblock.close",
            "coordinator/mux/replies.py ReplyTable._reply_keys",
            f"{_REPLICA}/kept_errors.py KeptErrors.__getitem__",
            f"{_REPLICA}/space.py SpaceWatch._bytes_of",
        ),
    ),
    Unreached(
        "The one who reads the snapshots of a replica that is not in service.",
        "tests/coordinator/app/test_own_status.py",
        (
            f"{_GATEWAY}/stored_catalog.py",
            f"{_GATEWAY}/unary.py UnaryCalls._stored",
            f"{_GATEWAY}/unary.py UnaryCalls._query",
        ),
    ),
    Unreached(
        "Feature levels that are raised. A world begins with the highest one.",
        "tests/coordinator/gateway/test_feature_levels.py",
        (
            "coordinator/mux/catalog.py CatalogMachine._raise_level",
            "coordinator/mux/catalog.py CatalogMachine.load",
            "coordinator/mux/entities.py kind_and_key",
            "coordinator/stages/catalog_codec.py encode_catalog_result",
            "coordinator/stages/entities.py _feature_level",
            "coordinator/stages/entities.py _feature_level_of",
            f"{_APP}/leadership.py Leadership._look_at_level",
            f"{_GATEWAY}/reads.py ReadStarter._gathered",
            f"{_GATEWAY}/routes.py Routes.check_fields",
            f"{_GATEWAY}/routes.py Routes.check_level",
            f"{_GATEWAY}/session_reads.py SessionReads._page_of_own",
            "coordinator/mux/catalog_decisions.py at_level",
        ),
    ),
    Unreached(
        "Replies with words, which builds of feature level 1 kept.",
        "tests/coordinator/snapshot/files/test_inner_sections.py",
        (
            f"{_SNAPSHOT}/inner_sections.py _replies_without_texts",
            f"{_SNAPSHOT}/inner_sections.py _without_texts",
            f"{_SNAPSHOT}/inner_sections.py entities_of",
            "coordinator/mux/requests.py SessionsStage._reasons_alone",
            "coordinator/stages/errors.py without_text",
            f"{_GATEWAY}/replies.py command_reply",
            "coordinator/mux/requests.py SessionsStage._kept",
            "coordinator/stages/codec.py _without_words",
            "coordinator/stages/codec.py ProtobufCodec.encode_without_text",
        ),
    ),
    Unreached(
        "Services that die at one command, are busy for minutes, answer wrongly, or end a stream in"
        " order; item logs that outgrow their memory.",
        "tests/coordinator/stages",
        (
            "coordinator/stages/poison.py",
            "coordinator/stages/item_log.py ItemLog._drop",
            "coordinator/stages/item_log.py ItemLog._set_dropped",
            f"{_APP}/services.py ServiceLinks._gave_up",
            f"{_APP}/services.py ServiceLinks._busy",
            f"{_APP}/services.py ServiceLinks._item_log_dropped",
            f"{_APP}/services.py ServiceLinks._tell_defect",
            f"{_APP}/services.py ServiceLinks._look_for_defects",
            "coordinator/stages/client.py StageClient.hear",
            "coordinator/stages/client.py StageClient._watch_busyness",
            "coordinator/stages/client.py StageClient._gets_on",
            "coordinator/stages/client.py StageClient._read",
            "coordinator/stages/greeting.py read_hello_reply",
            "coordinator/stages/item_log.py ItemLog.append",
            "coordinator/stages/item_log.py ItemLog._cut",
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
        "Journals that are rings. No seed draws them; `--ring 1` gives them to any seed.",
        "tests/coordinator/journal/test_ring_journal.py",
        (
            f"{_APP}/main.py _ring_of",
            f"{_APP}/snapshots.py waits_for_adoption",
            f"{_APP}/snapshots.py SnapshotAssembly._waits_for_adoption",
            f"{_JOURNAL}/ring_file.py",
            f"{_JOURNAL}/ring_index.py",
            f"{_JOURNAL}/ring_journal.py",
            f"{_JOURNAL}/ring_opening.py",
            f"{_JOURNAL}/ring_records.py",
            f"{_JOURNAL}/ring_recovery.py",
            f"{_JOURNAL}/ring_rewriting.py",
            f"{_JOURNAL}/ring_scan.py",
            f"{_JOURNAL}/ring_table.py",
            f"{_PEERS}/peers.py _with_ring",
            f"{_REPLICA}/journal_opening.py",
            f"{_REPLICA}/ring_room.py",
        ),
    ),
    *RARE,
    *BEYOND_A_RUN,
)
