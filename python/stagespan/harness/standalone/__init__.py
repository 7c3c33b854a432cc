"""Modules whose source becomes a part of the file beside each generated script.

They need only torch and the standard library, and import each other but nothing else of stagespan.
Each name that one of them defines exists once in the folder, because all of them become one module.
"""
