"""All benchmarks, one after the other."""

from benchmarks import backends, calibration, core, learners, neural

core.main()
learners.main()
neural.main()
calibration.main()
backends.main()
