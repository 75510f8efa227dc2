"""All benchmarks, one after the other."""

from benchmarks import core, learners, neural

core.main()
learners.main()
neural.main()
