"""Every way the gateway refuses, in the words of OpenAI's error envelope."""


class GatewayError(Exception):
    """Base: HTTP status, the envelope's `type` and `code`, and the request field it is about."""

    status = 500
    kind = "server_error"
    code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class BadRequest(GatewayError):
    """The request can never succeed as it is."""

    status, kind, code = 400, "invalid_request_error", "invalid_value"


class UnknownField(BadRequest):
    """The request has a field that no engine honours."""

    code = "unknown_parameter"


class WrongType(BadRequest):
    """A field holds a JSON value of another type."""

    code = "invalid_type"


class Unsupported(BadRequest):
    """A field that OpenAI or Anthropic has and that cannot be honoured here."""

    code = "unsupported_parameter"


class TooLarge(BadRequest):
    """A body beyond the limit."""

    status, code = 413, "body_too_large"


class UnknownRoute(GatewayError):
    """No such path, or not with that method."""

    status, kind, code = 404, "invalid_request_error", "unknown_url"


class WrongMethod(UnknownRoute):
    """The path exists, with other methods."""

    status, code = 405, "method_not_allowed"


class NotAuthenticated(GatewayError):
    """No key, or none that we gave out. One message for both, as which it is helps only an attacker."""

    status, kind, code = 401, "authentication_error", "invalid_api_key"

    def __init__(self) -> None:
        super().__init__(
            "send a valid API key, up_... or upk_..., as `Authorization: Bearer KEY` or `x-api-key: KEY`; "
            "one that is revoked or expired is none"
        )


class KeysUnavailable(GatewayError):
    """Keys cannot be read now, so no caller can be authenticated."""

    status, kind, code = 503, "server_error", "keys_unavailable"


class UsageUnavailable(GatewayError):
    """Usage cannot be read now."""

    status, kind, code = 503, "server_error", "usage_unavailable"


class NotAllowed(GatewayError):
    """A valid key that may not do this."""

    status, kind, code = 403, "permission_error", "not_allowed"


class UnknownModel(GatewayError):
    """No such model."""

    status, kind, code = 404, "invalid_request_error", "model_not_found"


class VersionNotServed(GatewayError):
    """The model exists, but no engine holds that version."""

    status, kind, code = 404, "invalid_request_error", "version_not_served"


class UnknownVersion(VersionNotServed):
    """The model has no such version."""

    code = "version_not_found"


class VersionRemoved(VersionNotServed):
    """Retention has removed the version."""

    code = "version_removed"


class NoRoom(GatewayError):
    """Every place for versions beside head is taken; the message says by what and until when."""

    status, kind, code = 503, "server_error", "no_room"


class NoEngine(GatewayError):
    """No engine could serve the model within the time we wait for one."""

    status, kind, code = 503, "server_error", "no_engine"


class EngineLost(GatewayError):
    """An engine was lost during a request; before its first byte another one is tried."""

    status, kind, code = 502, "server_error", "engine_lost"


class EngineFailed(EngineLost):
    """An engine that lives cannot answer this request: it is tried once more, and no engine is avoided."""

    code = "engine_failed"


class EngineMoved(EngineLost):
    """An engine answered with another version than the one that was asked for: it has reloaded since its last
    lease. No engine is avoided."""

    code = "engine_moved"


class EngineRefused(GatewayError):
    """The engine answered the request with a status from 400 to 499: its message, in our envelope."""

    kind, code = "invalid_request_error", "engine_refused"

    def __init__(self, message: str, *, status: int, code: str, param: str | None) -> None:
        super().__init__(message, param=param)
        self.status, self.code = status, code


class BadReply(GatewayError):
    """The engine's answer cannot be said in the dialect of the request."""

    status, kind, code = 502, "server_error", "unreadable_answer"


class DeadlineExceeded(GatewayError):
    """The request took longer than any request may."""

    status, kind, code = 504, "server_error", "deadline_exceeded"


class Draining(GatewayError):
    """This replica is shutting down; another connection reaches another one."""

    status, kind, code = 503, "server_error", "shutting_down"

    def __init__(self) -> None:
        super().__init__("this gateway is shutting down; connect again")
