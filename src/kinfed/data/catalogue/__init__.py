"""Real federations a user can have: what there is, where it comes from, and a checked file of each."""

from kinfed.data.catalogue.cache import cache_folder, fetch
from kinfed.data.catalogue.entries import CATALOGUE, find_entry
from kinfed.data.catalogue.entry import Entry

__all__ = ["CATALOGUE", "Entry", "cache_folder", "fetch", "find_entry"]
