"""What ``fit`` is made of: the plan of an epoch, the step, the loop, the run's folder."""
