"""Federated algorithms, one a file, each as its paper's box."""
