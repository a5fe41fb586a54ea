"""The same two-yield scenario that the other columns run, served by HUD's own environment server."""

from hud import Environment

env = Environment(name="bench")


@env.template()
async def echo(number: int = 0):  # noqa: ANN201 - the peer reads its own annotations
    """Answer with the number."""
    answer = yield f"say {number}"
    yield 1.0 if answer == str(number) else 0.0
