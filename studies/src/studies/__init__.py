"""The paper's studies, whole: tests and commands import them; they are no part of the public interface."""
