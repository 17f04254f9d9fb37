"""Subcommands, one a module; and what every one of them ends with."""

WRONG, NOT_TRACKED, NOT_COMPARABLE, INTERRUPTED = 2, 3, 4, 130
#: What each exit code means.
EXIT_CODES = {
    0: "done",
    1: "recorded, but not a whole measurement, or a check that failed",
    WRONG: "a wrong value",
    NOT_TRACKED: "safe on disk, but not on the tracking server",
    NOT_COMPARABLE: "not comparable: another machine, or other versions",
    INTERRUPTED: "interrupted",
}
#: The code by how a measurement ended.
OUTCOME_CODES = {
    **{"ok": 0, "oom": 1, "crashed": 1},
    **{"unsupported": WRONG, "refused": WRONG, "interrupted": INTERRUPTED},
}
