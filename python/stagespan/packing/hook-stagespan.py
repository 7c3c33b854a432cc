"""What PyInstaller does not find by itself: modules that are imported by name, and data files."""

from PyInstaller.utils.hooks import collect_data_files, collect_submodules

hiddenimports = collect_submodules("stagespan", on_error="ignore")  # some need torch
datas = collect_data_files("stagespan")
