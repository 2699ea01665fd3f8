"""`python -m fenceline` is the `fenceline` command."""

from fenceline.cli import main

if __name__ == "__main__":
    main()
