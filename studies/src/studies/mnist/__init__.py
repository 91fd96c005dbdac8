"""The paper's first study (section V-A): classify digits from a code that must also allow their reconstruction."""
