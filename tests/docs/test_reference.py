"""The reference pages say what the code says."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from docs.generate import OFF_UNTIL_SET

from grpo_math.objective import build_objective
from upcycle.errors import UpcycleError
from upcycle.run_config import LOSSES, OBJECTIVE_OPTIONS

ROOT = Path(__file__).parents[2]
SHOWN = re.findall(r"^::: (\S+)$", (ROOT / "docs/reference/sdk.md").read_text(), re.MULTILINE)
PUBLIC = ("upcycle", "upcycle.environment", "upcycle.eval", "upcycle.graders", "upcycle.train")


def test_the_reference_pages_are_up_to_date() -> None:
    command = [sys.executable, "-m", "docs.generate", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_a_loss_with_the_defaults_that_the_page_names_is_the_loss_without_options(loss: str) -> None:
    beside = {key: OFF_UNTIL_SET.get(key, 0.0) for key in OBJECTIVE_OPTIONS}
    # What changes something else than itself is refused alone, also at its default.
    alone = [key for key in beside if key.startswith("sampler_weight_") or key == "kl_bias_correction"]
    usable = {key: value for key, value in beside.items() if value is not None and key not in alone}
    assert build_objective(loss, usable) == build_objective(loss)


def named(path: str) -> Any:
    """The module or object of a dotted path."""
    module, _, name = path.rpartition(".")
    return import_module(path) if path == "upcycle.errors" else getattr(import_module(module), name)


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_on_the_page_of_the_sdk(module: str) -> None:
    shown = [named(path) for path in SHOWN]
    public = {name: getattr(import_module(module), name) for name in import_module(module).__all__}
    missing = [
        name
        for name, value in public.items()
        if value not in shown and name not in ("UpcycleError", "InfrastructureError", "eval")
    ]
    assert not missing


def test_every_error_that_a_caller_of_the_sdk_meets_is_on_its_page() -> None:
    for module in (
        "upcycle.evaluation",
        "upcycle.train",
        "upcycle.platform",
        "upcycle.run_config",
        "upcycle.rpc",
    ):
        import_module(module)
    shown = {named(path) for path in SHOWN}
    raised = {
        one
        for one in subclasses(UpcycleError)
        if one.__module__.startswith("upcycle.")
        and not re.search(r"\.(cli|channel|errors|benchmarks)\b", one.__module__)
    }
    assert raised <= shown


def subclasses(of: type) -> set[type]:
    children: list[type] = of.__subclasses__()
    return {one for child in children for one in (child, *subclasses(child))}


@pytest.mark.parametrize("path", SHOWN)
def test_what_the_page_of_the_sdk_shows_has_a_docstring_of_its_own(path: str) -> None:
    shown = named(path)
    assert (shown.__doc__ or "").strip()
    assert not shown.__doc__.startswith(
        f"{getattr(shown, '__name__', '')}("
    )  # made by dataclass or TypedDict
    if isinstance(shown, type):
        own = [value for name, value in vars(shown).items() if not name.startswith("_") and callable(value)]
        assert all((one.__doc__ or "").strip() for one in own)
