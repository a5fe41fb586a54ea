"""blob_store's contract on MinIO."""

import pytest
from tests.libs.blob_store.test_contract import *  # noqa: F403 - the suite, with this folder's servers

pytestmark = pytest.mark.docker
