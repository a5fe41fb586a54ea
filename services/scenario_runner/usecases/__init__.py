"""The decisions of the service."""
