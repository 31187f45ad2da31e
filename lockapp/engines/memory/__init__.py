"""The memory engine: every promise of lockapp, within one process. For development and tests."""

from lockapp.engines.memory.engine import MemoryEngine

__all__ = ["MemoryEngine"]
