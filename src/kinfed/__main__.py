"""``python -m kinfed``: the command line where ``kinfed`` is not on the path."""

from kinfed_command import main

if __name__ == "__main__":
    main()
