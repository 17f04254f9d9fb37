"""What runs inside the worker process: it composes device, model, data and window.

A module per kind of worker; each is imported by the worker that it is, since imports are part of
every measurement's start.
"""
