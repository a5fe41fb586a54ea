"""The control channel: newline-delimited JSON-RPC by which a runner drives an environment.

`hello`, `tasks.list`, `tasks.start`, `tasks.grade`, `tasks.cancel`, `bye`, `tunnel.open` as HUD environments
speak them, plus `tools.list` and `tools.call`. `ChannelServer` is the environment's side, `ControlChannel`
the runner's.
"""

from upcycle.environment.channel.client import ControlChannel
from upcycle.environment.channel.frames import ChannelClosed, ChannelError, FrameTooLarge
from upcycle.environment.channel.server import ChannelServer

__all__ = ["ChannelClosed", "ChannelError", "ChannelServer", "ControlChannel", "FrameTooLarge"]
