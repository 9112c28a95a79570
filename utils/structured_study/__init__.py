"""The study of unit 12: 2:4, channels, heads and blocks removed, and what training brings back."""
