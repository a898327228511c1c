"""Support for verl on a machine without a GPU: a platform, and replacements for functions that need a GPU.

These modules are independent of methods. They are loaded on a CPU only: `redraft.train.verl.config` then names them in
the environment and in the configuration of a run.
"""
