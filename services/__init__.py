"""The domain services: one package per metadata domain, all in the shell of `runtime`."""
