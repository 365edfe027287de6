"""``python -m evergrow``: the same as the ``evergrow`` command."""

from evergrow.cli.main import main

if __name__ == "__main__":
    main()
