"""The consumer groups domain: who reads what.

A group shares the partitions of one topic among its members, which are client sessions. Semantics
follow KIP-848: the server computes the target, members move towards it.

Epochs. The **group epoch** grows with every change of membership or partitions. The **assignment
epoch** is the group epoch for which the target was computed. A member's epoch is the assignment
epoch that it has reached: it has given up everything that this epoch takes from it.

Ownership. A partition is *held* by at most one member at every revision: owned (it may read) or
revoking (it was told to stop). A target that names a held partition waits until the holder
released it by a heartbeat, left, or let its deadline pass; a free partition is given at once.

One Assign at a time. A change that raises the group epoch proposes `Assign` only if the assignment
was up to date before; a stale Assign is a no-op that proposes the present epoch. So joins in a
burst share one computation. A pending Assign is derived (the assignment epoch is behind, and there
are members), never stored: a restored machine knows it too. A group whose epoch grows faster than a
proposal is sequenced gets its target when that ends.

Heartbeats. A sign of life that has nothing to tell is a read, and soft state of the primary's
service (`liveness`). A heartbeat that gives partitions up, or learns of an epoch, is a command; a
member has one in flight, and ignores the answer to one that it gave up. Members end with Leave,
with their session or their user, by silence, and when they give partitions up too late.

Offsets. A group keeps how far it has read each partition, in rows of 128 (`offsets`). They are
fenced by epoch and owner, and judged by the watermarks that streams tells of.

Rules of the domain are in `commands`, `effects` and `queries`; `membership` has what commands and
effects share, `assignment` applies targets that `assignors` compute, `section` is the encoding.
"""
