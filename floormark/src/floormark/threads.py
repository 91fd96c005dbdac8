"""One thread for linear algebra: matrices are small, and threads that wait for each other cost more than they gain.

On a machine with other work, two threads of OpenBLAS have taken fifty times as long as one.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@lru_cache(maxsize=1)
def _libraries() -> ThreadpoolController:
    """The linear algebra libraries of this process, cached: finding them takes a while."""
    import numpy  # noqa: F401 - its library must be loaded to be found

    return ThreadpoolController()


def limit_threads(threads: int) -> None:
    """Limit the threads of the linear algebra libraries that this process has loaded so far."""
    ThreadpoolController().limit(limits=threads)


def one_thread(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Wrap a function so that linear algebra uses one thread during it."""

    @wraps(function)
    def wrapped(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        with _libraries().limit(limits=1, user_api="blas"):
            return function(*arguments, **options)

    return wrapped
