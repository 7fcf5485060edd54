"""The command. ``main.py`` has the group, each other module one family of commands, imported when run."""
