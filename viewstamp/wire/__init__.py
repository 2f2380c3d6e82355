"""gRPC on HTTP/2 of our own (`viewstamp.http2`), in the shape of `grpc.aio`.

Handlers, clients and tests do not see which of the two they run on. Messages and fields are made
and read here without input and output; `socket` alone touches asyncio's transports.
"""
