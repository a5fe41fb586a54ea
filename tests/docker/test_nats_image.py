"""event_bus on the official NATS image: publishing and slots. deploy/images/check.sh runs these."""

import pytest
from tests.libs.event_bus.test_publish import *  # noqa: F403 - the suite, with this folder's servers
from tests.libs.event_bus.test_slots import *  # noqa: F403

pytestmark = pytest.mark.docker
