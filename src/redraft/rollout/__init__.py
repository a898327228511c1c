"""The rollout methods, written once: acceptance rules, draft store, group strategies, and the engine they run on."""
