"""The demo: one run that promises a share of unseen digits, beside a search over fixed weights."""
