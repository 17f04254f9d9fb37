"""One machine beside another: how fast, how efficient, at what cost."""
