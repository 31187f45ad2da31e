"""The Redis engine: Lua steps on one server (Redis 7.0 and later, Valkey 8 and later)."""

from lockapp.engines.redis.engine import RedisEngine

__all__ = ["RedisEngine"]
