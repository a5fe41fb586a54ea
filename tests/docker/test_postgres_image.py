"""sql_store's contract on the official Postgres image."""

import pytest
from tests.libs.sql_store.test_migrations import *  # noqa: F403 - the suite, with this folder's servers
from tests.libs.sql_store.test_outbox import *  # noqa: F403

pytestmark = pytest.mark.docker
