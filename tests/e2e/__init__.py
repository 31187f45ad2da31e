"""The demo, started and used as a stranger would."""
