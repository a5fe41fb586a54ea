"""Settings of `upcycle-provision --watch`."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from service_kit.groups import AccessSettings, BusSettings, PeerSettings
from service_kit.settings import ServiceSettings


class ProvisionSettings(ServiceSettings):
    """Keeps streams and durables on the bus, and a queue for each model of the registry."""

    model_config = SettingsConfigDict(env_prefix="PROVISION_")

    http_port: int = Field(7209, ge=0, le=65535)
    """Port of /livez, /readyz and /metrics; 0 lets the system choose."""
    poll_s: float = Field(1.0, gt=0)
    """Seconds between two looks at the registry's list of models."""
    repair_s: float = Field(30.0, gt=0)
    """Seconds after which streams and durables that are missing are made again."""
    replicas: int = Field(1, ge=1, le=5)
    """Copies of each stream in a NATS cluster."""
    bus: BusSettings = Field(default_factory=BusSettings)
    peers: PeerSettings = Field(default_factory=PeerSettings)
    access: AccessSettings = Field(default_factory=AccessSettings)
