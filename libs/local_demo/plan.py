"""What the demo runs: the example's recipe, and how the two cores or four of a laptop are shared."""

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from upcycle.errors import UpcycleError

MODEL = "incident"
TRAIN_TASKSET, HELD_OUT_TASKSET = "incident-train", "incident-held_out"
AUDIT_TASKSET = "incident-audit"
"""Neither trains nor gates: opened once, at the end."""
PRACTICE_TASKSET = "incident-practice"
"""What the demo trains on and what its user evaluates beside the run: few enough of the train tasks that an
evaluation of all of them is over before the training is."""
FIRST_TASKSET = "incident-first"
"""Some of these tasks: measured before the training, whose first batch they are."""


class ExampleMissing(UpcycleError, FileNotFoundError):
    """The demo runs the repository's example, and it is not there."""

    kind = "example_missing"


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """The options of the demo."""

    engine: Literal["embedded", "vllm-cpu"]
    data_dir: Path
    repository: Path
    seed: int
    stay: bool
    recipe: Any

    @property
    def tasks_file(self) -> Path:
        """Defines the tasksets, all of split train but the held-out one and the one for audits."""
        return self.repository / "examples" / "incident" / "tasks.py"

    @property
    def policy_dir(self) -> Path:
        """The warm-started policy, as a Hugging Face directory."""
        return self.repository / "examples" / "incident" / "policy"


def find_repository(start: Path | None = None) -> Path:
    """The checkout that holds examples/incident: the working folder, one above, or where this file lies."""
    here = (start or Path.cwd()).absolute()
    for folder in (here, *here.parents, Path(__file__).resolve().parents[2]):
        if (folder / "examples" / "incident" / "tasks.py").exists():
            return folder
    raise ExampleMissing(
        f"no examples/incident was found from {here} upwards", "run the demo in a checkout of upcycle"
    )


def load_recipe(repository: Path) -> Any:
    """`examples.incident.recipe.RECIPE`, whose run is examples/incident/demo.toml."""
    if str(repository) not in sys.path:
        sys.path.insert(0, str(repository))
    return importlib.import_module("examples.incident.recipe").RECIPE
