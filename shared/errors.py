"""Errors a user can mend: the message says what was expected, what was found and what to do."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable


class UserError(Exception):
    """A mistake in the input or the surroundings; scripts print it without a traceback and exit 2."""


def suggest(name: str, choices: Iterable[str]) -> str:
    """Return `" Did you mean 'x'?"` for the nearest of `choices`, or `""` when none is near."""
    near = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.5)
    return f" Did you mean '{near[0]}'?" if near else ""


def fail_cleanly(main: Callable[[], int | None]) -> int:
    """Run a script's `main` and turn a `UserError` into one message on stderr and exit status 2."""
    try:
        return main() or 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away (`| head`); nothing is left to say
        return 1
