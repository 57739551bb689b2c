"""`python -m blackbox.cli` is the command `blackbox`."""

from blackbox.cli import main

if __name__ == "__main__":
    main()
