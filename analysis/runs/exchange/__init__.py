"""What runs exchange with the tracking server: tables and records from it, places back to it."""
