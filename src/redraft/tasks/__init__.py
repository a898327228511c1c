"""What models are trained on: problems, how they are put to the model, and when an answer is right."""
