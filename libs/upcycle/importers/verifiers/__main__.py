"""`python -m upcycle.importers.verifiers ENV_ID`: serve an environment of the library verifiers (0.1 or 0.4)
on the control channel over TCP, run with the Python that has it.

Prints `UPCYCLE_SERVE_PORT=<n>` once it accepts connections; `--tasks` writes its rows as a tasks file.
"""

import argparse
import importlib
import json
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NoReturn

from upcycle.environment.serve import add_serving_options, run
from upcycle.errors import UpcycleError
from upcycle.importers.errors import ImportRefused
from upcycle.importers.verifiers import classic, tasksets
from upcycle.importers.verifiers.hosting import (
    EVAL,
    TRAIN,
    ForeignEnvironment,
    ImportedEnvironment,
    RewardRange,
)
from upcycle.tasks import MAX_TASKS, Split, Taskset

USAGE: Final = 2
_SIDES: Final[dict[str, Split]] = {TRAIN: "train", EVAL: "held_out"}


def load(env_id: str, arguments: Mapping[str, Any], limit: int) -> ForeignEnvironment:
    """By the version of the library that is installed. Raises ImportRefused."""
    try:
        vf: Any = importlib.import_module("verifiers")
    except ImportError as error:
        raise ImportRefused(
            f"this Python cannot import verifiers: {error}", "run it with the one that has your environment"
        ) from error
    if hasattr(vf, "load_environment"):
        return classic.load(vf, env_id, arguments, limit or MAX_TASKS)
    return tasksets.load(env_id, arguments, version("verifiers"), limit)


def write_tasks(environment: ImportedEnvironment, split: str, path: Path, url: str) -> None:
    """The rows of a split as a tasks file. Raises TasksetInvalid."""
    Taskset(f"{environment.name}-{split}"[:200], environment.tasks(split, url), _SIDES[split]).save(path)


def _json_object(text: str) -> Mapping[str, Any]:
    """Raises ArgumentTypeError, which argparse shows."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r:.200} is not JSON: {error}; write '{{\"num_examples\": 100}}'"
        ) from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r:.200} is no object; write '{{\"num_examples\": 100}}'")
    return value


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m upcycle.importers.verifiers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("env_id", help="of an installed environment, as verifiers takes it")
    add("--args", type=_json_object, default={}, help="JSON for its loader: '{\"num_examples\": 100}'")
    add("--tasks", type=Path, help="write the rows of a split here, as a tasks file (.jsonl, .json, .csv)")
    add("--split", choices=sorted(_SIDES), help="for --tasks; default: train where there is one")
    add("--limit", type=int, default=0, help="rows of each split, the first ones; 0: all")
    add(
        "--reward-range",
        type=float,
        nargs=2,
        metavar=("LOW", "HIGH"),
        help="a reward counts as its part of it",
    )
    add_serving_options(parser)
    return parser.parse_args()


def _serve(arguments: argparse.Namespace) -> None:
    foreign = load(arguments.env_id, arguments.args, arguments.limit)
    given = arguments.reward_range
    rewards = RewardRange(*given) if given else RewardRange.of_weights(foreign.weights)
    environment = ImportedEnvironment(foreign, rewards)
    split = arguments.split or next(iter(foreign.rows))
    if split not in foreign.rows:
        raise ImportRefused(f"{foreign.name} has no split {split}", f"it has {', '.join(foreign.rows)}")

    def listening(port: int) -> None:
        url = f"tcp://{arguments.host}:{port}"
        counts = ", ".join(f"{len(rows)} {name}" for name, rows in foreign.rows.items())
        print(f"{foreign.name}, verifiers {foreign.version}: {counts} rows at {url}", flush=True)
        if arguments.tasks is not None:
            write_tasks(environment, split, arguments.tasks, url)

    run(environment, arguments, listening)


def main() -> NoReturn:
    """Entry point. Status 2: it cannot be served."""
    arguments = _arguments()
    arguments.no_mcp = True  # the MCP SDK of verifiers is of its own version
    try:
        _serve(arguments)
    except UpcycleError as error:
        sys.stderr.write(f"upcycle.importers.verifiers: {error}\n")
        sys.exit(USAGE)
    sys.exit(0)


if __name__ == "__main__":
    main()
