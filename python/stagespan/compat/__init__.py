"""Modules with the interfaces of other tools, so that code written for them runs on stagespan."""
