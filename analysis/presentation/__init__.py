"""What tables, reports and the console say of runs: their words, columns and tables."""
