"""Limits and transport options that both ends of a call agree on."""

from typing import Final

MAX_MESSAGE_BYTES: Final = 32 * 1024 * 1024
"""Largest request or response; gRPC's own default of 4 MiB would refuse large tasksets."""
MAX_STATUS_MESSAGE_CHARS: Final = 2000
"""Error messages travel in HTTP/2 headers, which clients limit to 8 KiB."""

ChannelOptions = list[tuple[str, str | int]]


def message_options(max_message_bytes: int) -> ChannelOptions:
    """Channel options for the size limit, the same for server and client."""
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
    ]


def server_options(max_message_bytes: int) -> ChannelOptions:
    """A port is held by one server only, and clients may ping every 10 s."""
    return [
        *message_options(max_message_bytes),
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
    ]


def client_options(max_message_bytes: int) -> ChannelOptions:
    """Notice a dead peer within 40 s during a stream, and a restarted one within a second."""
    return [
        *message_options(max_message_bytes),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        ("grpc.enable_retries", 0),
    ]
