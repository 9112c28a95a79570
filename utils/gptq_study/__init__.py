"""The study of unit 08: GPTQ on the whole model, what it gains, and where."""
