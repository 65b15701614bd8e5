"""`promptmill openapi`: the API's document, as it is kept in docs/openapi.json."""

import json

import click
from pydantic import SecretStr

from ops.settings import Settings


@click.command()
def openapi() -> None:
    """Print the API's OpenAPI 3.1 document; connects to nothing."""
    from api.app import api_document, create_app

    app = create_app(Settings(api_key=SecretStr("nobody's"), models=[]))
    click.echo(json.dumps(api_document(app), indent=2))
