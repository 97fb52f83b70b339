"""Carrying a paper away, starting a new one, and keeping the dependency files in step."""
