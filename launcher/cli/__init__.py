"""The command. ``main.py`` has the group, each other module one family of commands; heavy imports wait until one is run."""
