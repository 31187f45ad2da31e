"""The Redis engines: Lua steps on one server, or on several that share nothing."""

from lockapp.engines.redis.engine import RedisEngine
from lockapp.engines.redis.redlock.engine import RedlockEngine

__all__ = ["RedisEngine", "RedlockEngine"]
