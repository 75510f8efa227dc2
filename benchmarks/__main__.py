"""All benchmarks, one after the other."""

from benchmarks import calibration, core, learners, neural

core.main()
learners.main()
neural.main()
calibration.main()
