"""Monitors of reward hacks: they see each episode once, keep little, and name what shows a hack."""

from reward_monitors.alarms import Alarm, MonitorKind
from reward_monitors.observed import Component, Declared, Observed
from reward_monitors.watching import RunMonitors, Seen

__all__ = ["Alarm", "Component", "Declared", "MonitorKind", "Observed", "RunMonitors", "Seen"]
