"""The audit log: what an event is, and how the engine's streams become rows."""
