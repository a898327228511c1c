"""This project's methods inside other trainers: TRL and verl."""
