"""The one shell around every domain: a pure machine inside, gRPC outside.

A domain package fills a `Domain` (handlers by RPC name around one state) and starts its process:

    from services.runtime.process import run
    sys.exit(run("streams", lambda options: DOMAIN))

Pure, and the same on every replica:

========== =====================================================================================
section    what goes into a snapshot: kinds of entities, canonical bytes, loading, projections
freezing   cuts: what changed since the last snapshot, as references
installing a section on its way in: merged, migrated, loaded and checked in a new state
tables     state that can be taken back: every change goes to one undo log
offset_rows offsets of 128 partitions as one row of a table
watermarks what two domains know alike of partitions: where their data begins and ends
domain     what a domain provides: types of handlers, `Call`, `Deferred`, `Normalized`
handlers   the handlers looked up by method code and checked against the protos
spans      many framed messages taken apart and joined in bulk; what is malformed, and how
machine    `Machine`: applies batches item by item
answers    what reads and resolves answer, some of it computed later
normalize  (`normalization`) payloads made loggable before they enter the log
failures   refusal, defect, failure of this process: who is at fault and what follows
========== =====================================================================================

Not pure:

========== =====================================================================================
reading    a frozen section, encoded in slices beside the applies, compressed in threads
install    (`install_stream`) which message of an installation may come when
stream     one Apply stream: batches on the event loop, replies in order, slow reads in threads
server     Describe, Apply, Normalize, ReadSection and health; fencing of older coordinators
process    command line, sockets, signals, exit codes
garbage    when Python may collect garbage
throttle   how often a secret may be guessed
========== =====================================================================================

What goes wrong has three outcomes. A **refusal** is a result like any other. A **defect** (any
unforeseen exception of a handler) takes the command back and answers INTERNAL, on every replica
alike, with an alarm. A **failure of this process** (OSError, MemoryError, RecursionError, or a
batch that cannot be next) answers nothing: the process ends, and a new one replays.
"""
