"""The command that brings docker-compose.yml up says when it failed."""

from pathlib import Path

import pytest
from tests.docker.composed import Composed


def test_a_command_of_compose_that_fails_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "secrets.env").write_text("POSTGRES_PASSWORD=x\n")
    with pytest.raises(AssertionError, match="no-such-service"):
        Composed(tmp_path / "secrets.env", tmp_path).start("no-such-service")
