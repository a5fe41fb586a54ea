"""Who may ask for what: keys of the gateway's own table, and keys that the registry issued."""

from grpc_edge.issued_keys import IssuedKeys
from model_gateway.adapters.sql_keys import SqlKeyStore
from model_gateway.domain.calls import ModelTarget
from model_gateway.domain.errors import KeysUnavailable, NotAllowed, NotAuthenticated
from model_gateway.domain.keys import INFERENCE, ApiKey, bearer_text, check, is_issued, issued_key, parse_key
from upcycle.errors import Unavailable


class KeyAccess:
    """Authentication and the model allow-list."""

    def __init__(self, keys: SqlKeyStore, issued: IssuedKeys) -> None:
        self._keys = keys
        self._issued = issued

    async def authenticate(self, authorization: str | None, api_key: str | None = None) -> ApiKey:
        """The caller's key: `Authorization: Bearer KEY`, else `x-api-key: KEY`. Raises NotAuthenticated,
        KeysUnavailable."""
        text = api_key if authorization is None and api_key else bearer_text(authorization)
        if is_issued(text):
            return self._issued_to(text)
        presented = parse_key(text)
        return check(presented, await self._keys.find(presented.key_id))

    def _issued_to(self, text: str) -> ApiKey:
        try:
            found = self._issued.find(text)
        except Unavailable as error:
            raise KeysUnavailable(f"keys cannot be checked now: {error}") from error
        if found is None:
            raise NotAuthenticated
        return issued_key(found)

    def allow_inference(self, key: ApiKey, target: ModelTarget) -> None:
        """Raises NotAllowed."""
        key.require(INFERENCE)
        if not key.may_use(target.model):
            allowed = ", ".join(sorted(key.models))
            raise NotAllowed(
                f"key {key.key_id!r} may not use model {target.model!r}; it may use {allowed}", param="model"
            )
