"""Limits of open files: raised as far as a process may, and what fits into those that it has."""

import subprocess
import sys

import pytest

SCRIPT = """
import logging, resource, sys
from service_kit.descriptors import connections_that_fit, raise_descriptor_limit
logging.basicConfig(format="%(message)s %(way_out)s")
resource.setrlimit(resource.RLIMIT_NOFILE, (256, int(sys.argv[1])))
print(raise_descriptor_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0], connections_that_fit(1000))
"""


@pytest.mark.parametrize(
    ("hard", "said", "logged"),
    [
        (4096, "4096 4096 1000", ""),
        (1024, "1024 1024 512", "descriptors_limit_connections raise `ulimit -Hn`\n"),
    ],
)
def test_a_process_takes_the_descriptors_that_it_may_have(hard: int, said: str, logged: str) -> None:
    ran = subprocess.run(  # limits of this process stay as they are
        [sys.executable, "-c", SCRIPT, str(hard)], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == said.split()
    assert ran.stderr == logged
