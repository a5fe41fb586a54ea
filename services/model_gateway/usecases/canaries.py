"""Requests that meet a canary release."""

from collections.abc import Mapping
from dataclasses import replace

from model_gateway.adapters.directory import RegistryDirectory
from model_gateway.domain.calls import CompletionCall
from model_gateway.domain.canary import conversation_of, names_a_version
from model_gateway.domain.keys import ApiKey
from model_gateway.domain.sessions import SessionKey


class MeetCanaries:
    """Says which calls the version of a canary release answers."""

    def __init__(self, directory: RegistryDirectory) -> None:
        self._directory = directory

    def met(
        self,
        call: CompletionCall,
        headers: Mapping[str, str],
        key: ApiKey,
        session: SessionKey | None,
        request_id: str,
    ) -> CompletionCall:
        """The call, to be answered by the canary's version where its conversation meets one, or with a
        shadow. session: in which it is recorded; one that the client did not name is no conversation."""
        model = self._directory.view.models.get(call.target.model)
        canary = None if model is None else model.canary
        if model is None or canary is None or not call.route.samples or names_a_version(call, headers):
            return call
        named = session.session_id if session is not None and not session.captured else None
        if canary.meets(model.model, conversation_of(named, key.key_id, call.body)):
            return replace(call, canary=canary.version)
        # A shadow is kept as a trajectory: its holder agreed to capture, or has this request recorded.
        may_be_kept = call.may_be_recorded and not call.body.get("echo")
        if may_be_kept and (named or key.may_capture) and canary.shadows(request_id):
            return replace(call, shadow=canary.version)
        return call
