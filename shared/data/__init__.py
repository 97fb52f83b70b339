"""Data sets and weights: the catalogue, fetching and verifying the embedded ones, layouts of the real ones.

`shared.data.catalogue` is the door: `fetch`, `locate`, `requirement`, `missing`.
"""
