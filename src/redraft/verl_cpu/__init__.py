"""verl on a machine without a GPU: a platform, and what verl and vLLM assume that a processor lacks.

Nothing here knows of methods, and nothing of it is loaded where there is a GPU: `redraft.train.verl.config` names these
modules in the environment and the configuration of a run on a CPU only.
"""
