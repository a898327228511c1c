"""Reuse of rollouts in other projects' trainers, through the extension points that these document."""
