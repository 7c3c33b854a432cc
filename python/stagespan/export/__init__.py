"""Hands what recordings contain to monitoring systems, from outside the processes or inside one."""
