"""From finished runs to quantities: collected frames, statistics, and the paper's transcribed values."""
