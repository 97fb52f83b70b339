"""One folder a paper; a project imports only `shared` and third-party code."""
