"""Of the lines that no seed runs: rare moments, rare damage, and what callers exclude.

Nothing forbids a seed the moments and the damage. No seed of a campaign came to them, because they
need several things that seldom come together. If a seed does, the line may stay named.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from testkit.world.reached import Unreached

_APP: Final = "coordinator/app"
_GATEWAY: Final = "coordinator/gateway"
_HISTORY: Final = "coordinator/history"
_JOURNAL: Final = "coordinator/journal"
_MUX: Final = "coordinator/mux"
_PEERS: Final = "coordinator/peers"
_REPLICA: Final = "coordinator/replica"
_SNAPSHOT: Final = "coordinator/snapshot"
_STAGES: Final = "coordinator/stages"
_VSR: Final = "coordinator/vsr"

_EXCLUDED: Final[tuple[Unreached, ...]] = (
    Unreached(
        "Requests that come into the log twice, or that no gateway lets through. The primary"
        " refuses them before.",
        "tests/coordinator/mux",
        (
            f"{_MUX}/applied_answers.py _add_reply",
            f"{_MUX}/cut_run.py CutRun._decide",
            f"{_MUX}/requests.py SessionsStage.apply",
            f"{_MUX}/requests.py SessionsStage._repeat",
            f"{_MUX}/sessions.py SessionsMachine.check_header",
            f"{_MUX}/transaction_run.py TransactionRun._check_header",
            f"{_MUX}/transaction_run.py TransactionRun._line_up",
        ),
        is_rare=True,
    ),
    Unreached(
        "Cases that every caller excludes before it calls. The lines keep to what the function"
        " promises.",
        "tests/coordinator",
        (
            f"{_GATEWAY}/change_feed.py FeedFollower.take",
            f"{_GATEWAY}/change_feed.py ChangeFeed.end",
            f"{_GATEWAY}/past_reads.py _check_has_right",
            f"{_JOURNAL}/held_log.py HeldLog.discard_after",
            f"{_JOURNAL}/held_log.py HeldLog.mark_repaired",
            f"{_JOURNAL}/journal.py Journal._append",
            f"{_MUX}/applied_digests.py AppliedDigests.begin",
            f"{_MUX}/runs.py reached",
            f"{_REPLICA}/answers.py _single_results",
            f"{_REPLICA}/batcher.py Batcher.take",
            f"{_REPLICA}/intake.py Intake.refused",
            f"{_SNAPSHOT}/triggers.py SnapshotTriggers._since",
            f"{_STAGES}/codec.py _parse_items",
            f"{_STAGES}/codec.py ProtobufCodec.decode_effect",
            f"{_STAGES}/item_log.py ItemLog.move_base",
            f"{_VSR}/message_guards.py broken_chain",
            f"{_VSR}/normal.py on_client_batch",
            f"{_VSR}/rejoin.py on_admission_timeout",
        ),
    ),
    Unreached(
        "Services behind a network. Those of a world are on the machine of their coordinator.",
        "tests/coordinator/stages/test_slow_services.py",
        (f"{_STAGES}/channel.py ping_timeout_ms",),
    ),
    Unreached(
        "Records of builds that named no superblock in them. Those of this build show an older"
        " superblock by its number.",
        "tests/coordinator/journal",
        (f"{_JOURNAL}/plan.py _later_superblock",),
    ),
    Unreached(
        "Clocks that most replicas have wrong, or that are wrong for a minute. Most clocks of a"
        " world are right, and no run takes so long.",
        "tests/coordinator/app/test_cluster_time.py",
        (
            f"{_APP}/cluster_time.py ClusterTime._disagreement",
            f"{_APP}/cluster_time.py _lead_of_the_log",
            f"{_REPLICA}/cluster_clock.py OwnClock._look",
        ),
        is_rare=True,
    ),
    Unreached(
        "A line that is run, and that the measurement misses: under Python 3.11 an error that is"
        " thrown into a coroutine hides the next lines of those that await it.",
        "tests/coordinator/app/test_disk_memory.py",
        (f"{_APP}/disk_memory.py DiskMemory.run",),
    ),
    Unreached(
        "The end of a state of the past that nobody asks for. It comes to its end, and the"
        " measurement misses it in the same way.",
        "tests/coordinator/history/test_past_turns.py",
        (f"{_HISTORY}/turns.py PastTurns._some_wait",),
        is_rare=True,
    ),
    Unreached(
        "What a quiet watch is told of its progress. It is told, and the measurement misses it in"
        " the same way.",
        "tests/coordinator/gateway/test_watches.py",
        (f"{_GATEWAY}/watches.py _Watch._follow", f"{_GATEWAY}/watches.py _Watch._woken"),
        is_rare=True,
    ),
)

_DISKS: Final[tuple[Unreached, ...]] = (
    Unreached(
        "Files that no fault of a world damages: identities of copy directories, what is remembered"
        " of other replicas' disks, and partial files that became too long.",
        "tests/coordinator",
        (
            f"{_APP}/disk_memory.py DiskMemory.load",
            f"{_REPLICA}/slot_file.py _slots",
            f"{_SNAPSHOT}/opening.py _holds_nothing_else",
            f"{_SNAPSHOT}/opening.py _look",
            f"{_SNAPSHOT}/layer_fetching.py _opened_bytes",
        ),
    ),
    Unreached(
        "Files of two slots of which both are damaged. A loss of power spoils the one that is being"
        " written.",
        "tests/coordinator/replica/test_slot_file.py",
        (f"{_REPLICA}/slot_file.py SlotFile.read",),
        ends=r"raise next\(",
    ),
    Unreached(
        "Files of snapshots that cannot be opened, or not be written for another reason than a full"
        " disk. The disks of a world refuse neither.",
        "tests/coordinator/snapshot",
        (
            f"{_SNAPSHOT}/adoption.py Adoption.clean",
            f"{_SNAPSHOT}/adoption.py Adoption._prepare_next",
            f"{_SNAPSHOT}/files.py SnapshotFiles.release",
            f"{_SNAPSHOT}/generation_writer.py StoredGenerations.delete",
            f"{_SNAPSHOT}/local_writer.py LocalWriter.damage",
            f"{_SNAPSHOT}/local_writer.py _not_written",
        ),
    ),
    Unreached(
        "Disks that become full in the milliseconds in which a snapshot is written or mended, or"
        " a reserve is made.",
        "tests/coordinator/snapshot/files",
        (
            f"{_SNAPSHOT}/copies.py CopyDirectories._repaired",
            f"{_SNAPSHOT}/local_writer.py LocalWriter.give_up_reserve",
            f"{_SNAPSHOT}/reserve.py Reserve._make",
        ),
    ),
    Unreached(
        "Snapshots that too few replicas can write, because the disks of most refuse the same one.",
        "tests/coordinator/snapshot/orchestration/test_snapshot_orchestrator.py",
        (f"{_SNAPSHOT}/orchestrator.py LocalSnapshotOrchestrator._break_off",),
    ),
    Unreached(
        "Disks that become full in the milliseconds in which what was fetched is made a snapshot.",
        "tests/coordinator/snapshot/files/test_state_transfer.py",
        (f"{_SNAPSHOT}/transfer.py StateTransfer._tried",),
        ends=r"raise  # of the disk here",
    ),
    Unreached(
        "Disks that are full between the look at their free space and the write, at the first write"
        " of a file that keeps its size, or beyond the reserve of the journal.",
        "tests/coordinator",
        (
            f"{_APP}/disk_memory.py DiskMemory._goes_on_after",
            f"{_JOURNAL}/held_log.py HeldLog._append_restart",
            f"{_JOURNAL}/segment.py no_space_or_same",
            f"{_REPLICA}/intake.py Intake._admit_waiting",
        ),
    ),
    Unreached(
        "Deaths while a start looks whether segments can be moved to the archive.",
        "tests/coordinator/journal/test_archives.py",
        (f"{_REPLICA}/journal_archive.py check_archive",),
    ),
    Unreached(
        "Deaths between the two steps of the first write of a file: it is there, and has no name"
        " yet.",
        "tests/coordinator",
        (
            f"{_JOURNAL}/superblock.py Superblock.create",
            f"{_REPLICA}/slot_file.py SlotFile._create",
        ),
        ends=r"(self\._)?storage\.unlink\(temporary\)$",
    ),
    Unreached(
        "Records of one journal that are lost, damaged and at wrong places in the same start, or in"
        " an order that one fault does not make.",
        "tests/coordinator/journal",
        (
            f"{_JOURNAL}/findings.py _begins_blank",
            f"{_JOURNAL}/findings.py _find_before",
            f"{_JOURNAL}/findings.py _locate",
            f"{_JOURNAL}/live.py unconnected",
            f"{_JOURNAL}/live.py chain_breaks",
            f"{_JOURNAL}/misdirected_writes.py _looked_at",
            f"{_JOURNAL}/misdirected_writes.py _places",
            f"{_JOURNAL}/opening.py _frames_in",
        ),
    ),
    Unreached(
        "Damage of an entry that a read meets for a peer, before the entry is executed, or while it"
        " is written again or discarded.",
        "tests/coordinator",
        (
            f"{_REPLICA}/peer_answers.py PeerAnswers._committed",
            f"{_REPLICA}/peer_answers.py PeerAnswers._held",
            f"{_VSR}/message_guards.py log_replaced",
            f"{_VSR}/repair.py on_record_faulty",
        ),
    ),
    Unreached(
        "Damage of an entry that is found twice: by the read for its execution, and meanwhile by"
        " one for a peer.",
        "tests/coordinator/replica/test_apply_queue.py",
        (f"{_REPLICA}/apply_queue.py ApplyQueue._read",),
        ends=r"return$",
    ),
    Unreached(
        "Damage of an entry that is found when it is read to be executed, or before by a read for a"
        " peer. It waits, and is executed once a peer has sent it again.",
        "tests/coordinator",
        (
            f"{_REPLICA}/driver.py Driver._found_faulty",
            f"{_REPLICA}/apply_queue.py ApplyQueue.add",
            f"{_VSR}/commit.py deliver_again",
        ),
    ),
    Unreached(
        "Damage on one replica at the very entry where its log and the log of a later view differ,"
        " or at which the votes for a view differ.",
        "tests/coordinator/vsr",
        (
            f"{_VSR}/log_adoption.py discard_conflict",
            f"{_VSR}/log_selection.py known_committed",
            f"{_VSR}/log_selection.py canonical_up_to",
            f"{_VSR}/log_selection.py eliminate",
            f"{_VSR}/repair.py joins",
        ),
    ),
    Unreached(
        "Journals that lost their end, below what their superblock says is committed. No seed draws"
        " the fault that takes it, `lost_syncs`.",
        "tests/coordinator/vsr",
        (f"{_VSR}/startup.py await_peers",),
    ),
    Unreached(
        "The directory of an earlier life, put back after the replica has voted with another one."
        " A volume that a world puts back is of the same life.",
        "tests/coordinator/peers",
        (f"{_PEERS}/known_disks.py _forgotten",),
    ),
    Unreached(
        "Files of snapshots that are damaged after they were verified, or in all copies, and read"
        " before the replica starts again.",
        "tests/coordinator/snapshot/files",
        (
            f"{_SNAPSHOT}/copies.py CopyDirectories.read_part",
            f"{_SNAPSHOT}/copies.py CopiesFile.give_up_copy",
            f"{_SNAPSHOT}/garbage.py _generation",
            f"{_SNAPSHOT}/layout.py equality_check.check",
            f"{_SNAPSHOT}/provider.py StoredGeneration.check_sections",
            f"{_SNAPSHOT}/restore.py StoredLayer.read_block",
            f"{_SNAPSHOT}/verify.py scrub_file",
        ),
    ),
    Unreached(
        "Damaged snapshots that others have only in other layers, damaged too, or not yet: the one"
        " who lacks them has to wait for them.",
        "tests/coordinator",
        (
            f"{_APP}/snapshot_repair.py SnapshotRepair.run",
            f"{_SNAPSHOT}/transfer.py StateTransfer._way_out",
        ),
    ),
)

_MOMENTS: Final[tuple[Unreached, ...]] = (
    Unreached(
        "Generations that a replica holds of another cut than its peers, because a later view"
        " replaced the entry at which they were cut.",
        "tests/coordinator",
        (
            f"{_REPLICA}/start.py is_committed",
            f"{_SNAPSHOT}/files.py SnapshotFiles._known_as",
            f"{_SNAPSHOT}/work.py LocalWork._writer",
        ),
    ),
    Unreached(
        "Generations that are decided, deleted or no longer needed in the milliseconds in which"
        " each is cut, written, fetched or waited for.",
        "tests/coordinator/snapshot",
        (
            f"{_GATEWAY}/snapshots.py SnapshotReads.catalog_changed",
            f"{_SNAPSHOT}/files.py SnapshotFiles.delete",
            f"{_SNAPSHOT}/generations.py Generations.catalog_state",
            f"{_SNAPSHOT}/generations.py Generations.what_lacks",
            f"{_SNAPSHOT}/orchestrator.py LocalSnapshotOrchestrator.report",
            f"{_SNAPSHOT}/orchestrator.py LocalSnapshotOrchestrator.fail",
            f"{_SNAPSHOT}/transfer.py StateTransfer._bring",
            f"{_SNAPSHOT}/transfer.py StateTransfer._drop_leftovers",
            f"{_SNAPSHOT}/transfer.py StateTransfer._take_in",
            f"{_SNAPSHOT}/values.py failed",
            f"{_SNAPSHOT}/values.py _check_open",
        ),
    ),
    Unreached(
        "Merges of layers that go on while files are collected, or until the next one of their"
        " section. Those of a world take a moment.",
        "tests/coordinator/snapshot/files/test_layer_compaction.py",
        (
            f"{_SNAPSHOT}/files.py SnapshotFiles._keep_merged",
            f"{_SNAPSHOT}/garbage.py collect",
        ),
    ),
    Unreached(
        "Callers, streams and credentials that end in the milliseconds in which what they asked for"
        " is on its way.",
        "tests/coordinator",
        (
            f"{_GATEWAY}/submit.py _Stream._check_fence",
            f"{_MUX}/deduplication.py Admission.lookup",
            f"{_MUX}/mux.py Mux.deferred",
            f"{_MUX}/requests.py SessionsStage._check_principals",
            f"{_REPLICA}/reads.py ReplicaReads._send",
        ),
    ),
    Unreached(
        "Reads that are answered in the same turn of the loop in which their deadline passes, and"
        " answers of reads that are made before those of commands are sent.",
        "tests/coordinator/gateway",
        (
            f"{_GATEWAY}/reads.py ReadStarter._expire",
            f"{_GATEWAY}/answers.py AnswerQueue.take",
        ),
    ),
    Unreached(
        "Turns at the past whose caller hangs up in the millisecond in which a state is there, and"
        " comes again before the turn is over.",
        "tests/coordinator/history/test_past_turns.py",
        (
            f"{_HISTORY}/turns.py PastTurns._read",
            f"{_HISTORY}/turns.py PastTurns._walk",
            f"{_HISTORY}/turns.py PastTurns._goes_on",
            f"{_HISTORY}/turns.py PastTurns._is_given_up",
            f"{_HISTORY}/turns.py PastTurns._is_wanted_again",
            f"{_HISTORY}/turns.py PastTurns._answer",
        ),
    ),
    Unreached(
        "Callers who may read one entity and not the list of its kind, and who ask for others of it"
        " by their ids.",
        "tests/coordinator/gateway/test_blame_pages.py",
        (f"{_GATEWAY}/blame_targets.py BlamedTarget.sought",),
    ),
    Unreached(
        "Logs that are dropped in the milliseconds in which an earlier state is led through them.",
        "tests/coordinator/history",
        (
            f"{_HISTORY}/builder.py PastBuilder.lead_to",
            f"{_HISTORY}/builder.py PastBuilder._apply_to",
            f"{_HISTORY}/builder.py PastBuilder._next_entries",
        ),
    ),
    Unreached(
        "Replicas that connect again before the stream of their life before is known to be over,"
        " and at once or after a long silence.",
        "tests/coordinator/peers",
        (
            f"{_PEERS}/listener.py Listener._serve",
            f"{_PEERS}/listener.py Listener._check_duplicate",
        ),
    ),
    Unreached(
        "Primaries that stop in order and whose place nobody takes in time.",
        "tests/coordinator/app/test_hand_over.py",
        (f"{_APP}/hand_over.py hand_over",),
    ),
    Unreached(
        "Access tokens that were got for a personal access token which has ended. Few users of a"
        " world have one.",
        "tests/coordinator/mux/test_sessions_machine.py",
        (f"{_MUX}/sessions.py SessionsMachine.minimum_above",),
    ),
    Unreached(
        "Services that end their stream in order, or do not greet. Those of a world end it with an"
        " error, or die.",
        "tests/coordinator/stages/test_ended_streams.py",
        (f"{_STAGES}/base.py install", f"{_STAGES}/client.py StageClient.run"),
        ends=r"raise TimeoutError$|reason = ",
    ),
    Unreached(
        "Services whose stream ends between two turns of the loop, so that a writer meets it before"
        " the reader does, and sections that are replaced while a service takes them.",
        "tests/coordinator/stages",
        (
            f"{_STAGES}/client.py StageClient._talk",
            f"{_STAGES}/client.py StageClient.write",
        ),
    ),
    Unreached(
        "Services that die again before they have come as far as the ones before them.",
        "tests/coordinator/stages/test_slow_services.py",
        (
            f"{_STAGES}/client.py StageClient.coming_back",
            f"{_STAGES}/client.py StageClient._lost",
        ),
    ),
    Unreached(
        "Watchers whose replica is cut off from the others, and not from them, for longer than a"
        " read may take.",
        "tests/coordinator/gateway/test_change_feed.py",
        (
            f"{_GATEWAY}/change_feed.py ChangeFeed._confirm",
            f"{_GATEWAY}/change_feed.py _cut_off",
        ),
    ),
    Unreached(
        "Operators who ask for digests while others are told theirs, or raise the feature level"
        " before a replica was heard.",
        "tests/coordinator/gateway",
        (
            f"{_APP}/reports.py SnapshotReports._supported",
            f"{_GATEWAY}/status_digests.py StatusDigests.ask",
        ),
    ),
    Unreached(
        "Several sampled calls of one method in a row, of which a service gets several items that"
        " touch.",
        "tests/coordinator/telemetry/test_calls_in_a_row.py",
        ("coordinator/telemetry/prepares.py PrepareNotes._concerned",),
    ),
    Unreached(
        "Logs, votes and questions of a view that a later one has replaced, which come late to a"
        " replica that knows more, or has just restarted.",
        "tests/coordinator/vsr",
        (
            f"{_VSR}/log_adoption.py advance",
            f"{_VSR}/log_adoption.py lacking",
            f"{_VSR}/message_guards.py stale_start_view",
        ),
    ),
    Unreached(
        "Primaries that are asked to resign in the milliseconds in which they are elected.",
        "tests/coordinator/vsr/test_rare_states.py",
        (f"{_VSR}/log_adoption.py take_up", f"{_VSR}/normal.py enter"),
    ),
    Unreached(
        "Foundings that are disturbed between two of their few messages: an answer comes twice, a"
        " member restarts, or misses the first entry and hears of it by others.",
        "tests/coordinator/vsr",
        (
            f"{_VSR}/bootstrap.py on_blank_answer",
            f"{_VSR}/bootstrap.py on_found",
            f"{_VSR}/message_guards.py repair_not_lacking",
            f"{_VSR}/rejoin.py recognize_initial_member",
        ),
    ),
    Unreached(
        "Journals of one entry without a superblock: of a founder that died before it told anyone,"
        " or of a standby that lost its superblock.",
        "tests/coordinator/vsr",
        (f"{_VSR}/startup.py found_anew",),
    ),
)

RARE: Final[tuple[Unreached, ...]] = (
    *_EXCLUDED,
    *(replace(entry, is_rare=True) for entry in (*_DISKS, *_MOMENTS)),
)
