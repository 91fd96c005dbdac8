"""The command ``studies``. Each subcommand imports what it needs when it runs, so that ``--help`` is quick."""
