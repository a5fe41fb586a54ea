"""The keeper's decisions."""
