"""The mux: it leads committed prepares through the stages, and answers once all have answered.

Pure: no clock, no input or output, no protobuf. A shell translates `types` to the wire.

Words. A prepare is split into *runs*; each run makes *visits*: one batch to one stage. A run's
items for a stage come from its own commands, from reads, and from the effects of its commands.

The one ordering rule: a run may enter a stage only after every earlier run has left that stage for
the last time. Within a run a visit is composed once all its earlier visits were answered.
Everything else follows: effects arrive at their place in the order of revisions, other stages keep
pipelining while a backward effect is under way, and a read sees one revision everywhere.

A cut (BeginSnapshot, alone in its prepare) is the only run that also waits until it is the oldest
and alone, and holds every stage until all services are frozen: a snapshot contains exactly the log
up to its cut. Sessions, replies and catalog freeze inside, as references to the changes.

The catalog changes inside the mux, while the shell answers reads of it. So that each read sees its
own place, a catalog command waits until the reads sent before it were answered.

The shell's duties:

- `Mux.commit` with committed prepares in op order, at most limits.UNAPPLIED_PREPARES_MAX not
  applied.
- Carry out effects in their order. Batches of one stage are sent and answered in order.
- When a stage's process dies, the shell replays logged batches (sequence > 0) to the new process
  and delivers the answers still owed. Unlogged batches die with the process, so the shell calls
  `Mux.fail_reads` for that stage.
- Answer catalog reads from `Mux.catalog`, at once or by a deferred answer, never late: a batch
  that waits for the catalog to change would keep it from changing.
- `CutTaken` and `CatalogChanged` come before the `Applied` of their prepare, and all three are
  carried out without a turn of the loop between them. Once that generation is the one to restart
  from, call `Mux.release`: the next cut is then a delta against it.
- MuxError and AssertionError stop the replica.

Prepares are applied in op order; only then does the reply table of sessions change.
"""
