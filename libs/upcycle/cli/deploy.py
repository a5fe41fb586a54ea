"""`upcycle deploy`."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, human, print_json
from upcycle.cli.tasksets import naming_lines
from upcycle.deploying import Deployed, PackedEnvironment, deploy, environment_file, package
from upcycle.platform import Platform
from upcycle.tasks_files import TASKS_FILES
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.environment.core import Environment


async def deploy_environment(
    place: Path = Path(), *, name: str | None = None, dry_run: bool = False, as_json: JsonFlag = False
) -> int:
    """Pack an environment by its digest and send it to the platform, whose fleet plays it from then on.

    The pack has the environment's file, the modules beside it that it imports, and its declared data. Files
    that look like keys (.env, *.pem, id_rsa) stay here. The platform loads it once before it keeps it. Needs
    the operator's key: UPCYCLE_OPERATOR_KEY, or the file operator.key of the platform that `upcycle up`
    started. Then `upcycle sync tasks FILE NAME --deployed DIGEST` makes tasks of it.

    :param place: the environment's file, or a folder with an env.py.
    :param name: which environment, where the file declares several.
    :param dry_run: pack it and say what would be sent.
    :param as_json: one JSON line `deployed`.
    """
    file = environment_file(place)
    made = package(_loaded(file, name), file)
    for left in made.left_out:
        human().print(f"left out: {left} looks like a file with keys", markup=False, soft_wrap=True)
    if dry_run:
        _say(made, None, as_json)
        return Exit.OK
    async with Platform() as platform:
        done = await deploy(platform, made)
    _say(made, done, as_json)
    return Exit.OK


def _loaded(file: Path, name: str | None) -> "Environment":
    """Raises DefinitionError, which names file and line, and UnknownName."""
    from upcycle.environment import load_environment

    with naming_lines("it has to import here before it is sent"):
        return load_environment(file, name)


def _say(made: PackedEnvironment, done: Deployed | None, as_json: bool) -> None:
    if as_json:
        size = {"files": sorted(made.files.files), "bytes": made.num_bytes, "packed_bytes": len(made.packed)}
        sent = {"path": done.path, "scenarios": list(done.scenarios)} if done is not None else {}
        fields = {"name": made.name, "source_digest": made.digest, "is_deployed": done is not None}
        print_json("deployed", {**fields, **size, "left_out": list(made.left_out), **sent})
        return
    size_text = (
        f"{amount(len(made.files.files), 'file')}, {made.num_bytes:,} bytes, {len(made.packed):,} packed"
    )
    if done is None:
        print(f"{made.name}: source {made.digest}, {size_text}; nothing was sent")
        return
    print(f"deployed {made.name}: source {made.digest}, {size_text}")
    print(f"its scenarios: {', '.join(done.scenarios)}")
    print(f'in a tasks file: "environment": {{"name": "{made.name}", "path": "{done.path}"}}')
    file = _tasks_beside(made)
    print(f"tasks of it: upcycle sync tasks {file} NAME --deployed {made.digest}")
    print("then: upcycle eval NAME MODEL")


def _tasks_beside(made: PackedEnvironment) -> str:
    """The tasks file of the environment's folder, as a shell in the working directory names it."""
    folder = (made.files.root / made.files.entry).parent
    found = [folder / f"tasks{ending}" for ending in TASKS_FILES if (folder / f"tasks{ending}").is_file()]
    return shlex.quote(os.path.relpath(found[0])) if found else "FILE"
