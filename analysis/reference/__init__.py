"""Published results: packing of a campaign, reports of it, and comparison of other results with it."""
