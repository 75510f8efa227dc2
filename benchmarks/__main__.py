"""All benchmarks, one after the other."""

from benchmarks import core

core.main()
