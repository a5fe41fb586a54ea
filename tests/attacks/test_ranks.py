"""Another machine wants to reach what a trainer of several ranks opens."""

import os
from pathlib import Path

import pytest
from tests.attacks.listening import listening
from tests.services.grpo_trainer.batches import policy
from tests.services.grpo_trainer.learners import options, spec, thread_of

from grpo_trainer.learner.rank_group import open_store
from grpo_trainer.learner.torch_learner import TorchLearner

LOOPBACK = "127.0.0.1"


def test_the_store_of_ranks_listens_where_no_other_machine_reaches_it() -> None:
    store = open_store(2)

    assert [address for address, port in listening([os.getpid()]) if port == store.port] == [LOOPBACK]
    store.set("key", "value")
    assert store.get("key") == b"value"


@pytest.mark.study
async def test_ranks_compute_where_no_other_machine_reaches_them(tmp_path: Path) -> None:
    with thread_of(options(2)) as thread:
        learner = TorchLearner(thread)
        await learner.begin(spec(), policy(tmp_path / "base"))
        try:
            found = listening([os.getpid(), *thread.group.children])
        finally:
            await learner.close()

    assert {address for address, _ in found} == {LOOPBACK}
