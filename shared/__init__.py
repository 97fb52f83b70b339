"""The thin toolkits every paper stands on. Nothing here imports `projects`."""
