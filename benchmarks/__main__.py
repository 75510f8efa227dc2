"""All benchmarks, one after the other."""

from benchmarks import calibration, core, engines, learners, neural

core.main()
learners.main()
neural.main()
calibration.main()
engines.main()
