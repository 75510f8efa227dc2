"""A federation on Flower: whose data would help each site, and a personal model for every one."""
