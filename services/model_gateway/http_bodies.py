"""Reading the body of a request: bounded in bytes and in time; one that is broken is the client's fault."""

import asyncio

import aiohttp
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage

from model_gateway.domain.errors import BadRequest, DeadlineExceeded, TooLarge
from service_kit.http_limits import BODY_S


async def read_body(request: web.Request) -> bytes:
    """All of it. Raises BadRequest, TooLarge, DeadlineExceeded."""
    seconds = request.app[BODY_S]
    try:
        if request.content.is_eof():  # all of it came with the head, as small ones do
            return await request.read()
        async with asyncio.timeout(seconds):
            return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise TooLarge(f"the body is larger than {request.client_max_size} bytes") from error
    except (BadHttpMessage, aiohttp.ClientPayloadError, web.RequestPayloadError) as error:
        # Chunks that are none, or bytes that are not of the named Content-Encoding.
        raise BadRequest(f"the body cannot be read: {type(error).__name__}: {error!s:.200}") from error
    except TimeoutError as error:
        late = f"the body did not arrive within {seconds:g} s (UPCYCLE_EDGE_BODY_S)"
        raise DeadlineExceeded(late) from error
