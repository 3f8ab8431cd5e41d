"""The command line: one module per subject; heavy imports happen inside commands."""
