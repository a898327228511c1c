"""Rules that say how much of a draft is kept, as pure functions of arrays."""
