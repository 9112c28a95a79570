"""The study behind the page of results: every method on one text, with bytes and speed."""
