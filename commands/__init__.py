"""One file per subcommand; each composes the packages below it and computes nothing."""
