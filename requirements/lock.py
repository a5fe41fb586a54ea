"""Resolve the locks: every version with its hashes, torch apart because its build differs by machine."""

import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
RUN_EXTRAS = ("local", "train")
IMAGE_EXTRAS = ("train", "postgres")
DEV_EXTRAS = ("local", "train", "postgres", "dev", "benchmarks")


def wanted(extras: tuple[str, ...]) -> list[str]:
    """Requirements of both distributions with `extras` of the platform, and those that only the SDK has,
    without torch and without each other.
    """
    platform, sdk = (
        tomllib.loads(path.read_text())["project"]
        for path in (HERE.parent / "pyproject.toml", HERE.parent / "libs" / "pyproject.toml")
    )
    names = [*platform["dependencies"], *sdk["dependencies"]]
    for extra in extras:
        of = platform if extra in platform["optional-dependencies"] else sdk
        names += of["optional-dependencies"][extra]
    return sorted({name for name in names if not name.startswith(("torch>", "upcycle=="))})


def lock(target: str, extras: tuple[str, ...], *constraints: str) -> None:
    command = [sys.executable, "-m", "uv", "pip", "compile", "-", "--generate-hashes", "--no-header", "-q"]
    command += ["--python-version", "3.11", "--universal", "--no-annotate", "-o", str(HERE / target)]
    command += [part for name in constraints for part in ("-c", str(HERE / name))]
    command += ["--override", str(HERE / "apart.txt")]
    subprocess.run(command, input="\n".join(wanted(extras)), text=True, check=True)


if __name__ == "__main__":
    lock("run.txt", RUN_EXTRAS, "torch.txt")
    lock("image.txt", IMAGE_EXTRAS, "torch.txt", "run.txt")
    lock("dev.txt", DEV_EXTRAS, "torch.txt", "run.txt")
