"""Shared code of the course "Fewer Bits, Fewer Weights, Fewer Steps"."""
