"""Template tags of the pages of live locks."""
