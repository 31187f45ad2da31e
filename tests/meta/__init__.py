"""Tests of the project itself: layers, packaging, the machinery of the other tests."""
