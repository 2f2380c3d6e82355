"""Composite snapshots: their files, and the decisions about them.

What touches the disk, all of it through `coordinator.storage.Storage`:

* `files` is the entry point, `SnapshotFiles`, with its rules for threads;
* `local_writer` writes each file into three directories, verified; `writer_process` has another
  process do so (`writer_server`); `copies` reads, with repair, and scrubs;
* `identity` marks whose directory a directory is; `reserve` keeps space to be given up;
* `generation_writer` makes the layers of a generation, each by a `section_writer`, and then its
  manifest; `restore` reads them back;
* `pinned` gives the files of a generation as files, for downloads and checks;
* `compaction` merges a chain of layers into a new base; `garbage` removes unreferenced files;
* `verify` computes every digest of a generation anew.

What decides, and carries out the decisions:

* `values` says which reports fit a generation, `decisions` what to do about it, as a table;
* `orchestrator` does that, one generation at a time, from what `generations` knows;
* `work` makes a generation durable, from `sections` into the files;
* `triggers` says when to begin one; `store` is the catalog's view in SQLite, with `schema`;
* `api` is the API for callers in the same process.
"""
