"""Data of the project: embedded sets and the paper's own sets."""
