"""A whole service process for signal tests. MODE: good, slow (drains for a minute), dying."""

import asyncio
import os

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from service_kit.background import Worker
from service_kit.groups import BusSettings
from service_kit.main import run_main
from service_kit.service import Service
from service_kit.settings import ServiceSettings


class ToySettings(ServiceSettings):
    """Does nothing, reliably."""

    model_config = SettingsConfigDict(env_prefix="TOY_")

    group_size: int = Field(8, ge=2)
    """Rollouts per group."""
    bus: BusSettings = Field(default_factory=BusSettings)


def build_app(settings: ToySettings) -> Service:
    service = Service("toy", settings)

    async def loop(stop: asyncio.Event) -> None:
        print("working", flush=True)
        if os.environ["MODE"] == "dying":
            raise RuntimeError("out of oil")
        await stop.wait()
        if os.environ["MODE"] == "slow":
            print("draining", flush=True)
            await asyncio.sleep(60)

    service.add(Worker("loop", loop))
    return service


if __name__ == "__main__":
    run_main("upcycle-toy", ToySettings, build_app)
