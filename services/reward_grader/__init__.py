"""reward_grader: has each recorded trajectory graded once, by its own environment."""
