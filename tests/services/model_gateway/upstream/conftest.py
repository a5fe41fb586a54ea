"""A real gateway before a real local server that stands for a provider."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.services.model_gateway.upstream.provider_double import ProviderDouble, provider, providers_file


@pytest.fixture
async def acme() -> AsyncIterator[ProviderDouble]:
    """The provider."""
    async with provider() as double:
        yield double


@pytest.fixture
def entry() -> dict[str, Any]:
    """Fields of the providers' entries that a test overrides."""
    return {}


@pytest.fixture
def more() -> dict[str, Any]:
    """Settings of the gateway that a test overrides."""
    return {}


@pytest.fixture
def changes(
    acme: ProviderDouble, entry: dict[str, Any], more: dict[str, Any], tmp_path: Path
) -> dict[str, Any]:
    """The gateway's settings, with the file of providers."""
    fallbacks = {"incident": {"model": "acme/large", "after_s": 0.2}}
    return {"providers_file": providers_file(tmp_path, acme.url, fallbacks=fallbacks, **entry), **more}
