"""Long and heavy tests; each has a short version in the normal suite."""
