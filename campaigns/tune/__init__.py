"""The fastest setting of a configuration's knobs in bounded time, and what each knob gave."""
