"""The test suite; CONTRIBUTING.md says how to run each layer of it."""
