"""What can go wrong between a server and its clients."""

from shared.errors import UserError


class ClientError(UserError):
    """One client cannot do its part (no data, a bad reply); `on_bad_reply` decides: raise or leave it out."""


class WireError(ClientError):
    """A message is truncated, altered or of another kind."""


class NoReplies(UserError):
    """Nobody answered a call; the round ends and the model stays as it was."""
