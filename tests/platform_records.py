"""What a platform says about itself, to be compared with what its restored copy says."""

from typing import Any

from openai import AsyncOpenAI
from tests.platform_recipes import MODEL

from upcycle.api.registry.v1.service_pb2 import GetModelRequest, ListCheckpointsRequest
from upcycle.api.taskset.v1.service_pb2 import ListRunsRequest
from upcycle.api.trajectory.v1.service_pb2 import GetLedgerRequest
from upcycle.platform import Platform


async def recorded(platform: Platform, run_id: str) -> dict[str, Any]:
    """Runs, one ledger, head, and the digest of the weights of each version."""
    runs = (await platform.tasksets.ListRuns(ListRunsRequest(), timeout=30)).runs
    ledger = await platform.trajectories.GetLedger(GetLedgerRequest(run_id=run_id), timeout=30)
    model = (await platform.registry.GetModel(GetModelRequest(model=MODEL), timeout=30)).model
    listed = await platform.registry.ListCheckpoints(ListCheckpointsRequest(model=MODEL), timeout=30)
    return {
        "runs": sorted(run.run_id for run in runs),
        "run": next(run.SerializeToString(deterministic=True) for run in runs if run.run_id == run_id),
        "ledger": (ledger.requested, ledger.settled, dict(ledger.by_state)),
        "head": (model.head_version, model.head_revision),
        "weights": {one.version: (one.digest, one.state, one.is_head) for one in listed.checkpoints},
    }


async def served(gateway: str, key: str) -> tuple[int, str]:
    """Version and digest of the weights behind the gateway's answer."""
    async with AsyncOpenAI(base_url=f"http://{gateway}/v1", api_key=key) as client:
        raw = await client.chat.completions.with_raw_response.create(
            model=MODEL, messages=[{"role": "user", "content": "hello"}], max_tokens=4
        )
    return int(raw.headers["x-upcycle-version"]), raw.headers["x-upcycle-digest"]
