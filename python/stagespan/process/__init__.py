"""This process: forks, imports, files, its run and how it ends."""
