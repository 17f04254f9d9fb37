"""What runs inside the worker process: it composes device, model, data and window.

One module per kind of worker. A worker imports its own alone, since imports are part of every
measurement's start.
"""
