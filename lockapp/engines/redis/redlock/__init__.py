"""Redlock: a lock on the majority of several independent Redis or Valkey masters."""
