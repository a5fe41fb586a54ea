"""What the store does: reading what was sampled, and removing what is old."""
