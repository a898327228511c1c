"""`redraft doctor`: whether a machine can run a campaign, and what to do where it cannot."""
