"""Profiles: ops and kernels under the roofs."""
