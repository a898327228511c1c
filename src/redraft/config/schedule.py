"""Configuration of schedules: any registered schedule of `redraft.methods`."""

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from redraft.methods.schedule import ScheduleMethod

if TYPE_CHECKING:
    Schedule = ScheduleMethod
else:
    Schedule = Annotated[Union[tuple(ScheduleMethod.registered())], Field(discriminator="kind")]  # noqa: UP007
