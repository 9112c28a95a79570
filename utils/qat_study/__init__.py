"""The study of unit 10: what training recovers after rounding, on the real model, and its cost."""
