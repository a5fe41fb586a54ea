"""What the sampler does with an episode."""
