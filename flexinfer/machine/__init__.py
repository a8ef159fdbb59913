"""Machines run bound schedules: real devices through torch, or an emulated GPU with a bounded arena and a slow link."""
