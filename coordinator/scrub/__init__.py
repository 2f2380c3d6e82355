"""The scrubber: everything durable is read again from the disk, a little at a time, while the
replica runs, and what has rotted is mended from copies, from memory or from the other replicas.

* `plan` says what a pass reads, in which order and where it begins, `pace` how fast, `remedies`
  what is done about damage of each part: pure, and tables where they can be;
* `slow_disk` is the one thread that reads, with rests, and tells if it does not come back;
* `copy_reading` and `segment_reading` read one copy of a file, and one segment, in slices;
* `superblock_scrub`, `journal_scrub` and `snapshot_scrub` look at one part each, judge what looks
  wrong once more, and have it mended;
* `scrubber` goes round; `tally` is what people see of it; `ports` is what it acts upon.

Nothing is pinned or locked while a pass reads. So what looks wrong may have been replaced or
removed meanwhile: only a second look, with the generation pinned, in the thread of the journal or
under the mutex of the superblock, says that something is damaged.
"""
