"""From a typed config to a trained, logged, resumable Lightning run."""
