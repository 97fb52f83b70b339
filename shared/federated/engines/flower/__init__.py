"""The clients of a call at the nodes of a Flower federation: simulated on this machine, or really elsewhere.

The server is the same `FederatedModule` under the same Trainer; each task goes to its node as one Flower
message and its reply comes back as one. Clients run the same `Node`, so results are those of `Sequential`.
"""

from __future__ import annotations

import os

from shared.errors import UserError


def require() -> None:
    """Make sure that Flower can be imported, with its telemetry off unless the user switched it on.

    Raises:
        UserError: it is not installed.
    """
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    try:
        import flwr  # noqa: F401
        import ray  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"the flower engine needs the extra 'flower' ({error}). Install it with: "
            "pip install -c constraints.txt -e '.[flower]'"
        ) from None
