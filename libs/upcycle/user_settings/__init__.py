"""What a user sets once: where the platform is, which models and prices, keys, defaults of commands.

A value comes from a flag, else from an environment variable, else from the project's `upcycle.toml`, else
from the user's profile, else it has its default. `UserSettings.find` answers what one is, and from where.
"""
