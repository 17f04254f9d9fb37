"""Tables of machines: one beside another, their sensors, their facts."""
