"""The shell around the pure core: carries out its effects and feeds it events.

`driver` is the loop. Callers hold the part of it that does their work: `intake` takes commands in,
`reads` answers reads, `entries` takes entries from peers, `mux_effects` takes answers of stages,
and `serving` says whom this replica serves. `batcher` packs requests into prepares, `writer` makes
them durable in a thread, `proposals` sequences what machines ask for, `bootstrap` makes the first
entry.
"""
