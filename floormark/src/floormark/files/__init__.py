"""Image files marked and read: one, or a whole folder."""
