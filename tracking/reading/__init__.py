"""From tracked runs back to records."""
