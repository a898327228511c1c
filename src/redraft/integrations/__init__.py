"""This project's methods inside other people's trainers."""
