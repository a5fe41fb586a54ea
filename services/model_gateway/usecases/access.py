"""Who may ask for what: keys of the gateway's own table, keys that the registry issued, tokens of people."""

from typing import TYPE_CHECKING

from grpc_edge.issued_keys import IssuedKeys, is_token
from model_gateway.adapters.sql_keys import SqlKeyStore
from model_gateway.domain.calls import ModelTarget
from model_gateway.domain.errors import KeysUnavailable, NotAllowed, NotAuthenticated
from model_gateway.domain.keys import (
    INFERENCE,
    ApiKey,
    bearer_text,
    check,
    is_issued,
    issued_key,
    parse_key,
    persons_key,
)
from upcycle.errors import Unavailable

if TYPE_CHECKING:
    from grpc_edge.id_tokens import IdTokens


class KeyAccess:
    """Authentication and the model allow-list."""

    def __init__(self, keys: SqlKeyStore, issued: IssuedKeys, tokens: "IdTokens | None" = None) -> None:
        """tokens: None where no issuer is set."""
        self._keys = keys
        self._issued = issued
        self._tokens = tokens

    async def authenticate(self, authorization: str | None, api_key: str | None = None) -> ApiKey:
        """The caller's key: `Authorization: Bearer KEY`, else `x-api-key: KEY`. Raises NotAuthenticated,
        KeysUnavailable."""
        text = api_key if authorization is None and api_key else bearer_text(authorization)
        if is_issued(text):
            return self._issued_to(text)
        if self._tokens is not None and is_token(text):
            return self._person_of(text, self._tokens)
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

    @staticmethod
    def _person_of(text: str, tokens: "IdTokens") -> ApiKey:
        try:
            found = tokens.find(text)
        except Unavailable as error:
            raise KeysUnavailable(f"tokens cannot be checked now: {error}") from error
        if found is None:
            raise NotAuthenticated
        return persons_key(found)

    def allow_inference(self, key: ApiKey, target: ModelTarget) -> None:
        """Raises NotAllowed."""
        key.require(INFERENCE)
        if not key.may_use(target.model):
            allowed = ", ".join(sorted(key.models))
            raise NotAllowed(
                f"key {key.key_id!r} may not use model {target.model!r}; it may use {allowed}", param="model"
            )
