"""Which tests run in one worker."""

from pathlib import Path

from xdist.scheduler import LoadFileScheduling


class Scheduling(LoadFileScheduling):
    """All tests of a file run in one worker, and those of some groups of files too.

    Args:
        groups: names of the files of each group, without `.py`.
    """

    def __init__(self, config, log, groups):
        super().__init__(config, log)
        self.group_of = {name: " ".join(group) for group in groups for name in group}

    def _split_scope(self, nodeid):
        file = super()._split_scope(nodeid)
        return self.group_of.get(Path(file).stem, file)
