"""`python3 -m bootstrap`: plain enough that any Python can read it, and an old one be refused."""

import sys

if sys.version_info < (3, 10):  # noqa: UP036
    sys.stderr.write(
        "set-up: mlproject needs Python 3.10 or newer, and %s is Python %s: "  # noqa: UP031
        "install a newer one and name it, for example `make setup PYTHON=python3.12`\n"
        % (sys.executable, sys.version.split()[0])
    )
    sys.exit(2)

from bootstrap.setup import ROOT, main, set_up

if (ROOT / "kit.json").exists():
    from contrib.kit import set_up

sys.exit(main(sys.argv[1:], set_up))
