"""`python -m upcycle.importers.harbor FOLDER [--engine podman]` builds the images of task directories."""

import argparse
import sys
from pathlib import Path

from upcycle.cli.exits import Exit
from upcycle.importers.errors import ImportRefused
from upcycle.importers.harbor.container import ENGINES, build, installed_engine
from upcycle.importers.harbor.reading import ContainerImage, read_task


def main() -> int:
    """One line for each task directory below FOLDER; status 1 where an image could not be made."""
    parser = argparse.ArgumentParser(prog="python -m upcycle.importers.harbor", description=__doc__)
    parser.add_argument("folder", type=Path, help="that has the task directories")
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[0])
    asked = parser.parse_args()
    status = Exit.OK
    try:
        engine = installed_engine(asked.engine)
    except ImportRefused as error:
        parser.error(str(error))
    folders = sorted(path.parent for path in asked.folder.glob("*/task.toml"))
    if not folders:
        parser.error(f"{asked.folder} has no task directory: one has a task.toml")
    for folder in folders:
        try:
            image = read_task(folder, in_container=True).image
            if isinstance(image, ContainerImage):
                print(f"{folder.name}: {build(image, engine)}", flush=True)
        except (ImportRefused, RuntimeError) as error:
            print(f"{folder.name}: {error}", file=sys.stderr)
            status = Exit.FAILED
    return status


if __name__ == "__main__":
    sys.exit(main())
