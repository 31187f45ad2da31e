"""Lock engines, chosen by dotted path in the settings."""
