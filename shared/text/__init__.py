"""Text encoders and language models that several papers use."""
