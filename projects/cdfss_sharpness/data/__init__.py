"""Episodes and where their images come from."""
