"""What several subcommands share: options, tables, progress, and the way to the server."""
