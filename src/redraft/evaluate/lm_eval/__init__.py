"""lm-eval (0.4.13) as a harness: its tasks, loop and models, with this project's problems and grader."""
