"""Runs a Python script as a plugin of rlhost."""
