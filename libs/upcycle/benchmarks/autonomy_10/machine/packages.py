"""Packages are built from their folder and published, in the order of what they need."""

from ..errors import CommandFailed
from .state import Computer, Package


def package_named(machine: Computer, name: str) -> Package:
    """Raises CommandFailed."""
    if name not in machine.packages:
        raise CommandFailed(f"there is no package {name!r}; pkg list names them")
    return machine.packages[name]


def version_in(machine: Computer, package: Package) -> str:
    """The version that its folder says."""
    return _text(machine, f"{package.folder}/VERSION").strip()


def needs_of(machine: Computer, package: Package) -> dict[str, str]:
    """Least versions by package, from its file NEEDS: one `name >= version` a line."""
    lines = [line for line in _text(machine, f"{package.folder}/NEEDS").splitlines() if line.strip()]
    pairs = (line.split(">=") for line in lines)
    return {pair[0].strip(): pair[-1].strip() for pair in pairs}


def build(machine: Computer, name: str) -> str:
    """Build the version that the folder says; what was built."""
    package = package_named(machine, name)
    version = version_in(machine, package)
    number_of(version)
    _check_needs(machine, name, package)
    package.built = version
    return version


def publish(machine: Computer, name: str) -> str:
    """Publish what was built; its version."""
    package = package_named(machine, name)
    if package.is_held:
        raise CommandFailed(f"{name} is held; pkg unhold {name} first")
    if not package.built or package.built != version_in(machine, package):
        raise CommandFailed(f"{name} {version_in(machine, package)} is not built; pkg build {name} first")
    if package.published and number_of(package.built) <= number_of(package.published):
        raise CommandFailed(f"{name} {package.published} is published; {package.built} is not newer")
    _check_needs(machine, name, package)
    package.published = package.built
    return package.published


def number_of(version: str) -> tuple[int, ...]:
    """`1.4.0` as numbers, for comparisons. Raises CommandFailed."""
    parts = version.split(".")
    if len(parts) != 3 or not all(part.isdecimal() and len(part) < 6 for part in parts):
        raise CommandFailed(f"{version[:40]!r} is no version; write three numbers, such as 1.4.0")
    return tuple(map(int, parts))


def _check_needs(machine: Computer, name: str, package: Package) -> None:
    for needed, least in needs_of(machine, package).items():
        published = package_named(machine, needed).published
        if not published or number_of(published) < number_of(least):
            raise CommandFailed(f"{name} needs {needed} >= {least}, published is {published or 'none'}")


def _text(machine: Computer, path: str) -> str:
    file = machine.files.get(path)
    if file is None or file.text is None:
        raise CommandFailed(f"{path}: no such file")
    return file.text
