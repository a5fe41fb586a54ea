"""Names of versions, read the same as at the gateway."""

import pytest

from identities.entities import checkpoint_id
from model_gateway.domain.calls import read_target
from model_gateway.domain.errors import BadRequest
from upcycle.errors import UnknownName
from upcycle.model_names import named_version


@pytest.mark.parametrize(
    ("name", "model", "version"),
    [
        ("incident", "incident", None),
        ("incident@head", "incident", None),
        ("incident@v0", "incident", 0),
        ("incident@v12", "incident", 12),
        ("Qwen/Qwen3.5-4B@v3", "Qwen/Qwen3.5-4B", 3),
        (f"incident@{checkpoint_id('incident', 7)}", "incident", 7),
        (f"incident@{checkpoint_id('incident', 10**8)}", "incident", 10**8),
    ],
)
def test_a_name_says_a_version(name: str, model: str, version: int | None) -> None:
    assert named_version(name) == (model, version)
    assert (read_target(name).model, read_target(name).version) == (model, version)


@pytest.mark.parametrize(
    "name", ["incident@12", "incident@v", "incident@v01", "incident@latest", f"a@{checkpoint_id('b', 1)}"]
)
def test_another_name_is_refused(name: str) -> None:
    with pytest.raises(UnknownName, match="names no version of"):
        named_version(name)
    with pytest.raises(BadRequest, match="names no version of"):
        read_target(name)
