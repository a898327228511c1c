"""Tasks that models are trained and evaluated on: problems, prompts and graders."""
