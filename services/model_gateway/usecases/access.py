"""Who may ask for what."""

from model_gateway.adapters.sql_keys import SqlKeyStore
from model_gateway.domain.calls import ModelTarget
from model_gateway.domain.errors import NotAllowed
from model_gateway.domain.keys import INFERENCE, ApiKey, bearer, check


class KeyAccess:
    """Authentication and the model allow-list."""

    def __init__(self, keys: SqlKeyStore) -> None:
        self._keys = keys

    async def authenticate(self, authorization: str | None) -> ApiKey:
        """The caller's key. Raises NotAuthenticated."""
        presented = bearer(authorization)
        return check(presented, await self._keys.find(presented.key_id))

    def allow_inference(self, key: ApiKey, target: ModelTarget) -> None:
        """Raises NotAllowed."""
        key.require(INFERENCE)
        if not key.may_use(target.model):
            allowed = ", ".join(sorted(key.models))
            raise NotAllowed(
                f"key {key.key_id!r} may not use model {target.model!r}; it may use {allowed}", param="model"
            )
