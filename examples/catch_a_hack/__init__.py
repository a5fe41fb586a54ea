"""An environment whose grader pays for a list of guesses, and a shadow grader that notices."""
