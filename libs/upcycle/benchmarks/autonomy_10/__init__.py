"""autonomy-10: work of 20 to 40 steps on a simulated computer, in ten categories, drawn from seeds."""
