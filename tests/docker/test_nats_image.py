"""event_bus on the official NATS image: publishing, slots and replays."""

import pytest
from tests.libs.event_bus.test_publish import *  # noqa: F403 - the suite, with this folder's servers
from tests.libs.event_bus.test_replays import *  # noqa: F403
from tests.libs.event_bus.test_slots import *  # noqa: F403

pytestmark = pytest.mark.docker
