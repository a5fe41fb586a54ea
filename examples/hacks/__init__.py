"""Planted reward hacks: variants of the incident environment, and a small policy that learns each of them."""
