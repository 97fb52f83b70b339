"""Vision toolkits that several papers use: Fourier parts, feature similarity, ViT tokens, embedded images."""
