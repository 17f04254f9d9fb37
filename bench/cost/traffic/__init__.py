"""Traffic of the passes of a step: what a fusing compiler would move, and what nothing can save."""
