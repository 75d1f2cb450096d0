"""`python -m app` is `shellback`."""

from app.cli.main import main

main()
