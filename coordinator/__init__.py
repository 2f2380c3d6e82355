"""The coordinator: one replica's log, mux, journal and public face."""

from viewstamp.event_loop import choose_classic_poller

choose_classic_poller()  # before anything in here imports gRPC
