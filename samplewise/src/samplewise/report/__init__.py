"""Results for people: the style of all figures, and pages."""
