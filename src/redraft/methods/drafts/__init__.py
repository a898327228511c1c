"""Shared by methods that reuse drafts: responses from drafts, and their verification, chunk by chunk."""
