"""Load an environment from a Python file: the one `Environment` it declares."""

import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

from upcycle.environment.core import Environment
from upcycle.environment.deployed import refuse_deployed
from upcycle.errors import DefinitionError, UnknownName, UpcycleError
from upcycle.modules import load_module

_OURS: Final = str(Path(__file__).parents[1])


def load_environment(path: Path | str, name: str | None = None) -> Environment:
    """The environment that a file declares (or imports). name: of its variable or its own, if the file has
    several.

    Raises UnknownName, DefinitionError, or SourceRefused for one that a platform has.
    """
    refuse_deployed(path)
    module = load_module(Path(path))
    attributes = {key: value for key, value in vars(module).items() if isinstance(value, Environment)}
    found = {value.name: value for value in attributes.values()}
    _refuse_namesakes(path, attributes)
    known = ", ".join(found) or "none"
    if name is not None:
        environment = attributes.get(name) or found.get(name)
        if environment is None:
            raise UnknownName(f"{path} declares no environment {name!r}", f"it has {known}")
        return environment
    if not found:
        raise DefinitionError(f"{path} declares no environment", _declared_elsewhere(module))
    if len(found) > 1:
        raise DefinitionError(
            f"{path} declares {len(found)} environments ({known})",
            f"name the one to load: {Path(path).name}:{next(iter(found))}",
        )
    return next(iter(found.values()))


def _refuse_namesakes(path: Path | str, attributes: Mapping[str, Environment]) -> None:
    first: dict[str, tuple[str, Environment]] = {}
    for variable, environment in attributes.items():
        other, known = first.setdefault(environment.name, (variable, environment))
        if known is not environment:
            raise DefinitionError(
                f"{path} has two environments called {environment.name!r}: {other} and {variable}",
                "give one of them another name",
            )


def _declared_elsewhere(module: ModuleType) -> str:
    """The way out for a file of tasks: the file that declares their environment."""
    from upcycle.scenario import Scenario
    from upcycle.tasks import Task, Taskset

    for value in vars(module).values():
        one = value[0] if isinstance(value, list | tuple) and value else value
        if isinstance(one, Scenario | Task | Taskset) and one.environment.path:
            name, path = one.environment.name, one.environment.path
            return f"its tasks are of environment {name!r}: name the file that declares it, {path}"
    return 'write env = Environment("name") in it, or name the file that does'


def why_not_loaded(error: BaseException) -> str:
    """What loading a file raised, with the lines of the author's files and without ours."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_OURS, "<frozen"))
    ]
    last = [f"{error}\n"] if isinstance(error, UpcycleError) else traceback.format_exception_only(error)
    return "".join([*traceback.format_list(frames), *last]).rstrip()
