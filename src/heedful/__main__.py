"""``python -m heedful``."""

from heedful.cli.main import main

main()
