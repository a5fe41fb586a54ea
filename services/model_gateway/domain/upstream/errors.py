"""How a provider fails. Each names it, and none shows its key."""

from model_gateway.domain.errors import GatewayError


class UpstreamFailed(GatewayError):
    """The provider could not be reached, broke off, or answered what cannot be read."""

    status, kind, code = 502, "server_error", "provider_failed"


class UpstreamSlow(UpstreamFailed):
    """The provider did not answer, or did not go on, in the time that its settings give it."""

    status, code = 504, "provider_timeout"


class UpstreamRefusesUs(UpstreamFailed):
    """The provider takes our key or our model name no more: the operator has to act, not the client."""

    code = "provider_refuses_gateway"


class UpstreamPaused(GatewayError):
    """The provider failed so often that nothing is sent to it for a while."""

    status, kind, code = 503, "server_error", "provider_paused"


class UpstreamBusy(GatewayError):
    """The provider's own limit is reached."""

    status, kind, code = 429, "rate_limit_error", "provider_rate_limit"


class UpstreamRefused(GatewayError):
    """The provider says that the request can never succeed as it is."""

    status, kind, code = 400, "invalid_request_error", "provider_refused"
