"""The archive: committed log in pieces, and snapshots, in a directory or an S3-compatible store.

`object_store` is the port to a store, with `directory_store` and `s3_store`. `archive_objects`
adds encryption (`sealing`) and names. What is there is said by numbered manifests that are written
last (`manifest_chain`); `packing` is pure and keeps them small. `committed_chain` is pure, too: it
proves which entries of a journal are committed. `journal_tail` reads the journal beside its
replica, `shipper` ships, `retention` gives up, `archive_check` verifies, and `staging` fetches for
a restore.
Nothing here imports `coordinator` or `services`.
"""

from __future__ import annotations
