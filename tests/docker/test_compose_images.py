"""The images hold what the locks, and so the bills of materials, say."""

import json

import pytest
from packaging.utils import canonicalize_name
from tests.deploy.locks import locked_for_images
from tests.docker.composed import Composed

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]
OURS = {"upcycle", "upcycle-platform", "pip"}
"""The last is Python's own, and came with it."""
INSTALLED = """
import json
from importlib.metadata import distributions

print(json.dumps({one.name: one.version for one in distributions()}))
"""


def installed(composed: Composed, service: str) -> dict[str, str]:
    """Package of others -> version, as the container's Python finds them."""
    said = json.loads(composed.execute(service, "python", "-c", INSTALLED))
    found = {canonicalize_name(name): version for name, version in said.items()}
    return {name: version for name, version in found.items() if name not in OURS}


def test_the_image_of_the_services_holds_the_lock_and_nothing_else(composed: Composed) -> None:
    assert installed(composed, "model-gateway") == locked_for_images("image.txt")


def test_the_image_with_torch_holds_its_locks_and_nothing_else(composed: Composed) -> None:
    found = installed(composed, "grpo-trainer")
    lock = "torch_cpu.txt" if found["torch"].endswith("+cpu") else "torch.txt"
    assert found == locked_for_images("image.txt", lock)
