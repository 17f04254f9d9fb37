"""The roofs that runs are held against."""
