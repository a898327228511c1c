"""Rollout methods: acceptance rules, group strategies and prompt schedules."""
