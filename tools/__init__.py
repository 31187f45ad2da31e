"""The commands behind the Makefile; standard library only where they run before the install."""
