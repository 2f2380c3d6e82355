"""Composite snapshots: the files they are kept in, and who decides about them.

What touches the disk, all of it through `coordinator.storage.Storage`:

* `files` is the face, `SnapshotFiles`, with its rules for threads;
* `copies` keeps each file in three directories: written, verified, read with repair, scrubbed;
* `identity` says whose directory a directory is; `reserve` keeps space to be given up;
* `writing` makes the layers and the manifest of a generation, `restore` reads them back;
* `compaction` merges a chain of layers into a new base; `garbage` removes what nobody names;
* `verify` computes every digest of a generation anew.
"""
