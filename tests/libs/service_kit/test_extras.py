"""A program without its libraries says what to install."""

import subprocess
import sys

import pytest

WITHOUT_TORCH = (
    "import runpy, sys; sys.modules['torch'] = None; runpy.run_module(sys.argv[1], run_name='__main__')"
)


@pytest.mark.parametrize("package", ["grpo_trainer", "embedded_engine"])
def test_without_torch_a_program_names_the_extra_and_exits_with_2(package: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, package, "--help"], capture_output=True, text=True, timeout=60
    )
    program = f"upcycle-{package.replace('_', '-')}"
    assert done.returncode == 2
    assert done.stderr == (
        f"{program} needs torch, which is missing; in a checkout: pip install ./libs '.[train]'\n"
    )
