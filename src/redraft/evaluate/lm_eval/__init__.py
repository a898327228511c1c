"""lm-eval (0.4.13) as a harness: its tasks, its loop and its models, this project's problems and grader."""
