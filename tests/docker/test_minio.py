"""blob_store's suites, unchanged, on MinIO."""

import pytest
from tests.libs.blob_store.test_contract import *  # noqa: F403 - the suite, with this folder's servers
from tests.libs.blob_store.test_kills import test_nothing_acknowledged_is_lost_when_the_server_is_killed  # noqa: F401 - without the fixture of its own server

pytestmark = pytest.mark.docker
