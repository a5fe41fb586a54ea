"""Recorded sessions over HTTP: their rewards. Decode, use case, encode."""

from aiohttp import web

from identities.entities import recorded_run_id
from model_gateway.domain.json_body import parsed
from model_gateway.domain.keys import INFERENCE
from model_gateway.domain.openapi import REWARD_PATH
from model_gateway.domain.rewards import read_reward
from model_gateway.domain.sessions import SESSION_ID, SessionNotFound
from model_gateway.http_bodies import read_body
from model_gateway.http_errors import json_response
from model_gateway.usecases.access import KeyAccess
from model_gateway.usecases.rewarding import RewardSessions


class SessionHandlers:
    """`POST /v1/sessions/{session_id}/reward`, and the same at the root."""

    def __init__(self, access: KeyAccess, reward: RewardSessions) -> None:
        self._access = access
        self._reward = reward

    def register(self, app: web.Application) -> None:
        """Adds the routes."""
        for path in (REWARD_PATH, REWARD_PATH.removeprefix("/v1")):
            app.router.add_post(path, self.reward)

    async def reward(self, request: web.Request) -> web.Response:
        """What the session has earned: score in [0, 1], success, subscores, group, split."""
        headers = request.headers
        key = await self._access.authenticate(headers.get("Authorization"), headers.get("X-Api-Key"))
        key.require(INFERENCE)
        raw = await read_body(request)
        session_id = request.match_info["session_id"]
        if not SESSION_ID.fullmatch(session_id):  # no call can have named it
            raise SessionNotFound(session_id)
        stands = await self._reward(session_id, key.key_id, read_reward(raw, parsed(raw)))
        return json_response(
            {
                "id": session_id,
                "object": "session.reward",
                "score": stands.score,
                "success": stands.success,
                "trajectory_id": stands.trajectory_id,
                "run_id": recorded_run_id(key.key_id),
                "group_id": stands.group_id,
                "unrecorded_calls": stands.unrecorded_calls,
            }
        )
