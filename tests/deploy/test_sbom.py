"""The bill of materials, the lock and the images name the same packages, versions and files."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.deploy.locks import Lock, locked

ROOT = Path(__file__).resolve().parents[2]
IMAGES = {
    "upcycle": ["image.txt"],
    "upcycle-train": ["image.txt", "torch.txt"],
    "upcycle-train-cpu": ["image.txt", "torch_cpu.txt"],
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def bills(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Lock]:
    """Image -> what its bill says, read as a lock is."""
    folder = tmp_path_factory.mktemp("sbom")
    program = ["sh", str(ROOT / "deploy" / "images" / "sbom.sh"), str(folder)]
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(program, env=environ, capture_output=True, timeout=500, check=True)
    return {image: _bill(folder / f"{image}.cdx.json") for image in IMAGES}


def _bill(path: Path) -> Lock:
    listed = json.loads(path.read_text())
    assert listed["bomFormat"] == "CycloneDX"
    return {
        (one["name"], one["version"]): frozenset(
            digest["content"]
            for reference in one["externalReferences"]
            for digest in reference.get("hashes", ())
            if digest["alg"] == "SHA-256"
        )
        for one in listed["components"]
    }


@pytest.mark.parametrize("image", IMAGES)
def test_the_bill_has_each_package_of_the_locks_with_its_hashes(image: str, bills: dict[str, Lock]) -> None:
    assert bills[image] == locked(*IMAGES[image])


@pytest.mark.parametrize("image", IMAGES)
def test_everything_is_hashed(image: str, bills: dict[str, Lock]) -> None:
    assert [name for (name, _), hashes in bills[image].items() if not hashes] == []


def test_the_images_are_built_from_the_locks_of_the_bill() -> None:
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    installs = re.findall(r"\bpip install (.*?)(?=;| \\|$)", dockerfile, re.MULTILINE)
    from_locks = {one for one in installs if "--no-deps --require-hashes -r /tmp/locks/" in one}
    assert {one.rpartition("/")[2] for one in from_locks} == {"image.txt", "build.txt"}
    assert {*installs} - from_locks == {"-q --no-cache-dir --no-index --no-deps /tmp/own/*.whl"}
    assert "sh /tmp/locks/torch.sh python install\n" in dockerfile
