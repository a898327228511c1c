"""Which tests run in one worker."""

from pathlib import Path

from xdist.scheduler import LoadFileScheduling


class Scheduling(LoadFileScheduling):
    """All tests of a file run in one worker, and those of some files too.

    Args:
        together: names of these files, without `.py`.
    """

    def __init__(self, config, log, together):
        super().__init__(config, log)
        self.together = together

    def _split_scope(self, nodeid):
        file = super()._split_scope(nodeid)
        return " ".join(self.together) if Path(file).stem in self.together else file
