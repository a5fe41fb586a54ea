"""Online GRPO: graded trajectories in, policy versions out, no trajectory twice."""

import os

# OpenMP reads this once, when torch loads it. Threads that spin at a barrier make a step many times slower
# where cores are shared, and a trainer shares them with engines and environments.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
