"""Every way the gateway refuses, in the words of OpenAI's error envelope."""


class GatewayError(Exception):
    """Base: HTTP status, the envelope's `type` and `code`, and the request field it is about."""

    status = 500
    kind = "server_error"
    code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class BadRequest(GatewayError):
    """The request can never succeed as it is."""

    status, kind, code = 400, "invalid_request_error", "invalid_value"


class UnknownField(BadRequest):
    """The request has a field that no engine honours."""

    code = "unknown_parameter"


class NotAuthenticated(GatewayError):
    """No key, or none that we gave out. One message for both, as which it is helps only an attacker."""

    status, kind, code = 401, "authentication_error", "invalid_api_key"

    def __init__(self) -> None:
        super().__init__("send a valid API key as `Authorization: Bearer up_...`")


class KeysUnavailable(GatewayError):
    """Keys cannot be read now, so no caller can be authenticated."""

    status, kind, code = 503, "server_error", "keys_unavailable"


class NotAllowed(GatewayError):
    """A valid key that may not do this."""

    status, kind, code = 403, "permission_error", "not_allowed"


class UnknownModel(GatewayError):
    """No such model."""

    status, kind, code = 404, "invalid_request_error", "model_not_found"


class VersionNotServed(GatewayError):
    """The model exists, but no engine holds that version."""

    status, kind, code = 404, "invalid_request_error", "version_not_served"


class NoEngine(GatewayError):
    """No engine could serve the model within the time we wait for one."""

    status, kind, code = 503, "server_error", "no_engine"


class EngineLost(GatewayError):
    """An engine was lost during a request; before its first byte another one is tried."""

    status, kind, code = 502, "server_error", "engine_lost"


class DeadlineExceeded(GatewayError):
    """The request took longer than any request may."""

    status, kind, code = 504, "server_error", "deadline_exceeded"


class Draining(GatewayError):
    """This replica is shutting down; another connection reaches another one."""

    status, kind, code = 503, "server_error", "shutting_down"

    def __init__(self) -> None:
        super().__init__("this gateway is shutting down; connect again")
