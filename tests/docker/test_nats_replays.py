"""event_bus on the official NATS image: replays."""

import pytest
from tests.libs.event_bus.test_replays import *  # noqa: F403 - the suite, with this folder's servers

pytestmark = pytest.mark.docker
