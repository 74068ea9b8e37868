"""The public door: an OpenAI-compatible HTTP gateway in front of a Canopy server.

The Triton server's own ports know no limits and miss disconnects, so they stay on the inner
network, and this process faces the clients. Imports go up this list:

    __main__       the command `canopy-gateway`
    server         the process: how it listens, drains and stops
    connection     limits of time and size of one connection
    app            routes and the order of the parts
    page           the page at /: static files
    request_guard  key, media type, body limit, disconnect = cancel: before anything is parsed
    handlers       from a checked request to its answer
    responses_api  /v1/responses: its requests as chats, its answers as items and events
    event_stream   what goes out as server-sent events
    answers        the streams behind one request: admission, merging, cleaning up
    schema         what is accepted, and what it means for the server
    messages       the turns of a chat
    neutral        fields that ask for nothing, and fields that are ignored
    responses      what is answered
    chat_answer    content, reasoning and calls of a chat
    tools          how calls and reasoning stand in a text
    tokenization   bodies of /tokenize and /detokenize
    json_text      JSON as it leaves
    strict         JSON as it is read
    errors, settings
"""

from canopy_gateway.app import create_app
from canopy_gateway.settings import GatewaySettings

__all__ = ["GatewaySettings", "create_app"]
