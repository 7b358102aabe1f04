"""`python -m tidegate` is `tidegate`."""

from tidegate.commands import main

main()
