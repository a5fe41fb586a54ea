"""Load an environment from a Python file: the one `Environment` it declares."""

from pathlib import Path

from upcycle.environment.core import Environment
from upcycle.errors import DefinitionError, UnknownName
from upcycle.modules import load_module


def load_environment(path: Path | str, name: str | None = None) -> Environment:
    """The environment that a file declares (or imports). name: of its variable or its own, if the file has
    several.

    Raises UnknownName or DefinitionError.
    """
    module = load_module(Path(path))
    attributes = {key: value for key, value in vars(module).items() if isinstance(value, Environment)}
    found = {value.name: value for value in attributes.values()}
    known = ", ".join(found) or "none"
    if name is not None:
        environment = attributes.get(name) or found.get(name)
        if environment is None:
            raise UnknownName(f"{path} declares no environment {name!r}", f"it has {known}")
        return environment
    if len(found) != 1:
        raise DefinitionError(f"{path} declares {len(found)} environments ({known})", "name the one to load")
    return next(iter(found.values()))
