"""The command line: `main` and one file a command. Importing this imports no torch."""
