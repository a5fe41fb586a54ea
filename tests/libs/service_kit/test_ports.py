"""Ports that a server can still have when it comes to listen."""

import socket
from pathlib import Path

from service_kit.ports import LOOPBACK, free_ports, is_free, pick_ports


def test_free_ports_are_different_and_can_be_bound() -> None:
    ports = free_ports(200)
    assert len(set(ports)) == 200
    assert all(map(is_free, ports))


def test_no_outgoing_connection_can_take_a_free_port_meanwhile() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if first >= 30_000:  # the kernel's default is 32768; a lower range leaves no other choice
        assert max(free_ports(50)) < first


def test_a_port_that_is_taken_is_not_given_away() -> None:
    with socket.socket() as taken:
        taken.bind((LOOPBACK, free_ports(1)[0]))
        taken.listen()
        port = taken.getsockname()[1]
        assert not is_free(port)
        (other,) = pick_ports([port])
        assert other != port
