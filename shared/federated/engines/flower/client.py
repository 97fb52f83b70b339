"""The `ClientApp` of a node. It loads torch when there is work: to say which client it is takes no model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from shared.errors import UserError

if TYPE_CHECKING:
    from shared.federated.engines.flower.site import Site

RECORD = "federated"


def client_app(site: Callable[[Context], Site]) -> ClientApp:
    """`site` builds what a node works with, from its configuration."""
    app = ClientApp()

    @app.query()
    def identify(message: Message, context: Context) -> Message:
        about = ConfigRecord({"client": number_of(context)})
        return Message(RecordDict({RECORD: about}), reply_to=message)

    @app.train()
    def work(message: Message, context: Context) -> Message:
        return Message(site(context).run(message.content), reply_to=message)

    return app


def number_of(context: Context) -> int:
    """The client that this node is: `partition-id` of its configuration.

    Raises:
        UserError: it has none.
    """
    number: Any = context.node_config.get("partition-id")
    if not isinstance(number, int):
        raise UserError(
            f"a node needs to know which client it is, found partition-id {number!r}. Start it with "
            "--node-config 'partition-id=0 ...'."
        )
    return number
