"""The sections of a report, each made from the runs that it is about; a section without runs is None."""
