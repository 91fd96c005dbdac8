"""What ``front.py`` is made of: tasks, arms, and what is said of their runs."""
