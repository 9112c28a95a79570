"""The machinery of the course itself: notebooks, labs, checks. Nothing here is about inference."""
