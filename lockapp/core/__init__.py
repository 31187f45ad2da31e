"""Values and arithmetic: no I/O, no clock, no Django, no client library."""
