"""Names of durable consumers on the bus: `<tenant>_<service>_<what>`, `_<model>` for a model's queue."""

from identities.subjects import name_of, token
from identities.tenants import OWN_TENANT


def durable(service: str, what: str = "", tenant: str = OWN_TENANT) -> str:
    """Name of a service's durable. service, what: words of lower-case letters, digits and hyphens."""
    return "_".join(part for part in (tenant, service, what) if part)


def of_model(durable_name: str, model: str) -> str:
    """Name of the durable that reads what `durable_name` stands for, of one model. Raises InvalidIdentity."""
    return f"{durable_name}_{token(model)}"


def model_of(durable_name: str, name: str) -> str | None:
    """The model in what `of_model` made of `durable_name`; None for the name of any other durable."""
    prefix, found, encoded = name.partition(f"{durable_name}_")
    return name_of(encoded) if found and not prefix and encoded else None
