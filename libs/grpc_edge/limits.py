"""Limits and transport options of the server; what both ends agree on is in `upcycle.rpc.limits`."""

from dataclasses import dataclass
from typing import Final, Self

from service_kit.groups import EdgeSettings
from upcycle.rpc.limits import ChannelOptions, message_options

MAX_STATUS_MESSAGE_CHARS: Final = 2000
"""Error messages travel in HTTP/2 headers, which clients limit to 8 KiB."""


@dataclass(frozen=True, slots=True)
class RpcLimits:
    """What callers may hold of a server.

    rpcs: calls at once; keyless_rpcs: of those without a valid key. request_s: longest wait for
    a request to arrive; stall_s: for a client to read. connections: open ones. fronts: addresses that speak
    for many peers."""

    rpcs: int
    rpcs_per_peer: int
    keyless_rpcs: int
    keyless_rpcs_per_peer: int
    request_s: float
    stall_s: float
    handshake_s: float
    connections: int
    fronts: frozenset[str]

    @classmethod
    def of(cls, settings: EdgeSettings) -> Self:
        """Those that the settings name."""
        return cls(
            rpcs=settings.rpcs,
            rpcs_per_peer=settings.rpcs_per_peer,
            keyless_rpcs=settings.keyless_rpcs,
            keyless_rpcs_per_peer=settings.keyless_rpcs_per_peer,
            request_s=settings.body_s,
            stall_s=settings.stall_s,
            handshake_s=settings.header_s,
            connections=settings.connections,
            fronts=settings.fronts,
        )


def server_options(max_message_bytes: int, limits: RpcLimits) -> ChannelOptions:
    """A port is held by one server only. Clients may ping each 5 s, and one that pings more often three times
    is cut off; one that froze is noticed within 15 s. Calls beyond those of one peer wait at a client that
    has one connection."""
    return [
        *message_options(max_message_bytes),
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", limits.rpcs_per_peer + limits.keyless_rpcs_per_peer),
        ("grpc.max_allowed_incoming_connections", limits.connections),
        ("grpc.server_handshake_timeout_ms", round(1000 * limits.handshake_s)),
        ("grpc.http2.max_ping_strikes", 2),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.http2.ping_timeout_ms", 5_000),  # 60 s without it, whatever the line above says
    ]
