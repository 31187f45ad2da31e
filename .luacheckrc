-- Read by `make check`, which hands luacheck each step with its fragments included (tools/lua.py).
-- Redis runs Lua 5.1 and offers these names; anything else global is a mistake, because a script
-- that writes a global is refused by the server at run time.
std = "lua51"
read_globals = { "redis", "cjson", "cmsgpack", "bit", "struct", "server", "KEYS", "ARGV" }
globals = {}
-- A fragment's parameter may be called like a local of the step that includes it.
ignore = { "431" }
max_line_length = 120
codes = true
