"""What a server answers without a key."""

from typing import Final

OPEN_SERVICES: Final = ("/grpc.health.v1.Health/", "/grpc.reflection.")
"""Methods that need no key and get no span."""
