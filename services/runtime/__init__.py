"""The one shell around every domain: a pure machine inside, gRPC outside.

`tables` holds state that can be taken back, `domain` is what a domain provides, `machine` applies
batches (pure), `server` speaks gRPC.
"""
