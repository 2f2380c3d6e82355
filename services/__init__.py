"""The domain services: one package per metadata domain, all in the shell of `runtime`."""

from viewstamp.event_loop import choose_classic_poller

choose_classic_poller()  # before anything in here imports gRPC
