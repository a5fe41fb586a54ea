"""rollout_sampler: plays episodes with a policy and keeps what happened, token for token."""
