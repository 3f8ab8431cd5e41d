"""What the verbs do, as functions that a test or a script can call; `cli` only parses."""
