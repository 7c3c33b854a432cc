"""TeleFuser's profiling modules on stagespan: same names, same calls, same results.

Replace ``telefuser.utils.profiler`` by ``stagespan.compat.telefuser.profiler``, and likewise
``telefuser.utils.stage_bench_harness``, ``telefuser.utils.memory_snapshot`` and
``telefuser.platforms``. Names that other tools give their files and log lines are TeleFuser's once
``profiler`` has been imported. Importing this package alone changes nothing.
"""
