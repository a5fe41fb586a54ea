"""A training loop of one's own, with a loss of one's own."""
