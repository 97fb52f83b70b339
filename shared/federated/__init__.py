"""Federated learning as ordinary Lightning training: one training step is one communication round."""
