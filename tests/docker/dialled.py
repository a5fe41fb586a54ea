"""Which connections a container has or had a moment ago; run there, with the container's own Python.

Prints ["ADDRESS:PORT", ...]: the other ends of those that it opened itself.
"""

import json
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

LISTENS = "0A"


def end(text: str) -> tuple[IPv4Address | IPv6Address, int]:
    """Of a socket, as the kernel writes it: words of the address in this machine's order."""
    address, port = text.split(":")
    words = [bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8)]
    found = ip_address(b"".join(words))
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found, int(port, 16)


def main() -> None:
    """Read the tables of sockets."""
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    served = {end(row[1])[1] for row in rows if row[3] == LISTENS}
    opened = {end(row[2]) for row in rows if row[3] != LISTENS and end(row[1])[1] not in served}
    print(json.dumps([f"{address}:{port}" for address, port in opened if not address.is_loopback]))


if __name__ == "__main__":
    main()
