"""What the fast decode engine is measured against, and how."""
