"""Planner, store and registry with a thousand models, ten thousand runs and five million episodes, beside
almost empty ones: how long the same questions take. `python -m benchmarks.scale --help` has smaller sizes.
"""

from benchmarks.scale.measuring import measure

__all__ = ["measure"]
