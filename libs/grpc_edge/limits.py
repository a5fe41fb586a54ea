"""Limits and transport options of the server; what both ends agree on is in `upcycle.rpc.limits`."""

from typing import Final

from upcycle.rpc.limits import ChannelOptions, message_options

MAX_STATUS_MESSAGE_CHARS: Final = 2000
"""Error messages travel in HTTP/2 headers, which clients limit to 8 KiB."""


def server_options(max_message_bytes: int) -> ChannelOptions:
    """A port is held by one server only. Clients may ping each 5 s; one that froze is noticed within 15 s."""
    return [
        *message_options(max_message_bytes),
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.http2.ping_timeout_ms", 5_000),  # 60 s without it, whatever the line above says
    ]
