"""The shell around the pure core: carries its effects out and feeds it events.

`driver` is the loop, `batcher` packs requests into prepares, `writer` makes them durable in a
thread, `proposals` sequences what machines ask for, `founding` makes the first entry.
"""
