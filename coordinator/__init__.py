"""The coordinator: one replica's log, mux, journal and public face."""
