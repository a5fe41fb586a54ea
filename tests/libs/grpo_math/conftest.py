"""Properties are about values; how long one example takes says something about the machine only."""

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
