"""The pages of live locks, and what they are made of."""
