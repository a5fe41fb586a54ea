"""Limits and transport options that both ends of a call agree on."""

from typing import Final

MAX_MESSAGE_BYTES: Final = 32 * 1024 * 1024
"""Largest request or response; gRPC's own default of 4 MiB would refuse large tasksets."""

ChannelOptions = list[tuple[str, str | int]]


def message_options(max_message_bytes: int) -> ChannelOptions:
    """Channel options for the size limit, the same for server and client."""
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
    ]


def client_options(max_message_bytes: int) -> ChannelOptions:
    """A client notices a frozen server within 16 s during a stream, and a restarted one within a second.

    To connect it gives a server 5 s, which is what gRPC reads out of its shortest backoff: one that is far
    away, or at work, takes more than a moment to greet. A server of 0.3.0 allows a ping each 10 s.
    """
    return [
        *message_options(max_message_bytes),
        ("grpc.keepalive_time_ms", 11_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.http2.ping_timeout_ms", 5_000),  # 60 s without it, whatever the line above says
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 5_000),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        ("grpc.enable_retries", 0),
    ]
