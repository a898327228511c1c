"""Configuration of reuse: any registered method of `redraft.methods`."""

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from redraft.methods.reuse import ReuseMethod

if TYPE_CHECKING:
    Reuse = ReuseMethod
else:
    Reuse = Annotated[Union[tuple(ReuseMethod.registered())], Field(discriminator="kind")]  # noqa: UP007
