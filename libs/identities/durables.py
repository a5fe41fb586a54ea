"""Names of durable consumers on the bus: `<tenant>_<service>_<what>`."""

from identities.tenants import DEFAULT_TENANT


def durable(service: str, what: str = "", tenant: str = DEFAULT_TENANT) -> str:
    """Name of a service's durable. service, what: words of lower-case letters, digits and hyphens."""
    return "_".join(part for part in (tenant, service, what) if part)
