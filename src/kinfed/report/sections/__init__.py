"""The sections of the report, one file each, in the order of the page."""
