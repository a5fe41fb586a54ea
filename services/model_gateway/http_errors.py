"""One error envelope for every status and every route, with the request's id in it and in a header."""

import json
import logging
import math
import re
from collections.abc import Awaitable, Callable, Mapping

import orjson
from aiohttp import web

from model_gateway.domain.dialects.dialect import Dialect, openai_envelope
from model_gateway.domain.dialects.table import DIALECTS
from model_gateway.domain.errors import GatewayError, TooLarge, UnknownRoute, WrongMethod
from service_kit.request_ids import REQUEST_ID, new_request_id

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

STREAM_BEGAN = web.RequestKey("stream-began", bool)
"""Key of a request whose answer is on its way: what fails now can only end the connection."""
_SESSION = re.compile(r"^/s/[^/]+")
_JSON = "application/json"


def json_response(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A JSON answer."""
    try:
        data = orjson.dumps(body)
    except orjson.JSONEncodeError:  # bytes of a path that are no text
        data = json.dumps(body).encode()
    return web.Response(body=data, status=status, content_type=_JSON, headers=headers)


def error_response(
    error: GatewayError, request_id: str, dialect: Dialect | None, headers: Mapping[str, str] | None = None
) -> web.Response:
    """The error in the envelope of the dialect."""
    sent = {REQUEST_ID: request_id, **(headers or {})}
    if dialect is not None:
        sent[dialect.request_id_header] = request_id
    if error.retry_after_s is not None:
        sent["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    elif error.status == 503:
        sent["retry-after"] = "1"
    envelope = dialect.envelope if dialect is not None else openai_envelope
    return json_response(envelope(error, request_id), error.status, sent)


def internal_error(request_id: str) -> GatewayError:
    """What a client learns of a fault of ours."""
    return GatewayError(f"internal error; the gateway's log has it under {request_id}")


@web.middleware
async def one_envelope(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Whatever a handler raises becomes the envelope. The port sees to it that every answer has an id."""
    try:
        response = await handler(request)
    except GatewayError as error:
        return error_response(error, new_request_id(), _dialect_at(request.path))
    except web.HTTPException as error:
        headers = {"allow": error.headers["allow"]} if "allow" in error.headers else {}
        found = _of_http(request, error)
        return error_response(found, new_request_id(), _dialect_at(request.path), headers)
    except Exception:
        request_id = new_request_id()
        log.exception("request_failed", extra={"request_id": request_id})
        if request.get(STREAM_BEGAN):
            raise
        return error_response(internal_error(request_id), request_id, _dialect_at(request.path))
    return response


def _dialect_at(path: str) -> Dialect | None:
    """The dialect whose clients ask at this path, or below it."""
    plain = _SESSION.sub("", path)
    for dialect in DIALECTS:
        if any(plain == one or plain.startswith(f"{one}/") for one in dialect.paths):
            return dialect
    return None


def _of_http(request: web.Request, error: web.HTTPException) -> GatewayError:
    where = f"{request.method} {request.path}"
    if isinstance(error, web.HTTPNotFound):
        return UnknownRoute(f"no route {where:.200}; /openapi.json lists those there are")
    if isinstance(error, web.HTTPMethodNotAllowed):
        return WrongMethod(
            f"no route {where:.200}; this path takes {', '.join(sorted(error.allowed_methods))}"
        )
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return TooLarge("the body is larger than this gateway takes")
    found = GatewayError(error.reason)
    found.status, found.code = error.status, "http_error"
    return found
