"""TeleFuser's profiling modules on stagespan: same names, same calls, same results.

Replace ``telefuser.utils.profiler`` with ``stagespan.compat.telefuser.profiler``, and similarly
``telefuser.utils.stage_bench_harness``, ``telefuser.utils.memory_snapshot`` and
``telefuser.platforms``. Once ``profiler`` is imported, files and log lines have TeleFuser's names
and form. Importing only this package changes nothing.
"""
