"""Online GRPO: graded trajectories in, policy versions out, no trajectory twice."""
