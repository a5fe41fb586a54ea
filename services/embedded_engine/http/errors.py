"""Errors as vLLM words them on the wire: `{"error": {"message", "type", "param", "code"}}`."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import orjson
from aiohttp import web
from pydantic import ValidationError

from chat_format import ChatFormatError
from embedded_engine.errors import (
    BadRequest,
    BadWeights,
    EngineDead,
    NameTaken,
    UnknownModel,
    UnsupportedModel,
)

log = logging.getLogger(__name__)

_SHOWN: Final = 10
"""Problems of one request that are said; a large one may have a million."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def json_reply(body: object, status: int = 200) -> web.Response:
    """A JSON response."""
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


def error_reply(status: int, kind: str, message: str, param: str | None = None) -> web.Response:
    """The error envelope."""
    return json_reply(error_body(status, kind, message, param), status)


def error_body(status: int, kind: str, message: str, param: str | None = None) -> dict[str, object]:
    """What is in it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def edge_envelope(status: int, code: str, message: str, request_id: str) -> object:
    """Of what is refused before it is a request."""
    return {**error_body(status, code, message), "request_id": request_id}


@web.middleware
async def envelope(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every error of a handler into one response; the engine lives on."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return json_reply({"detail": error.reason}, error.status)
    except ValidationError as error:
        return _invalid(error)
    except BadRequest as error:
        return error_reply(400, "BadRequestError", str(error), error.param)
    except (NameTaken, ChatFormatError, BadWeights, UnsupportedModel) as error:
        return error_reply(400, "BadRequestError", str(error))
    except UnknownModel as error:
        served = ", ".join(request.app["serving"].engine.names)
        message = f"The model `{error}` does not exist. Valid aliases: {served}."
        return error_reply(404, "NotFoundError", message, "model")
    except EngineDead as error:
        return error_reply(500, "InternalServerError", f"EngineCore encountered an issue: {error}")
    except Exception as error:
        log.exception("request_failed", extra={"path": request.path})
        return error_reply(500, "InternalServerError", f"{type(error).__name__}: {error}")


def _invalid(error: ValidationError) -> web.Response:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    where = [".".join(("body", *map(str, problem["loc"]))) for problem in problems]
    lines = [
        f"  {{'type': '{p['type']}', 'loc': '{at}', 'msg': '{p['msg']}'}}"
        for p, at in list(zip(problems, where, strict=True))[:_SHOWN]
    ]
    plural = "error" if len(problems) == 1 else "errors"
    message = f"{len(problems)} validation {plural}:\n" + "\n".join(lines)
    return error_reply(400, "Bad Request", message, where[0] if where else None)
