"""Registry of methods by their `kind`."""

import pkgutil
from importlib import import_module
from inspect import get_annotations
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from redraft.config.base import Config


class Registered(Config):
    """Configuration that is found by its `kind`. Each direct subclass is a family with separate members."""

    members: ClassVar[dict[str, Any]]
    order: ClassVar[int] = 1000
    """Rank within the family, in unions, tables and figures; members of equal rank are sorted by kind."""
    if TYPE_CHECKING:
        kind: str = ""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Register a class that states a `kind` itself.

        Raises:
            TypeError: if another class has it.
        """
        # Pydantic calls this once the fields exist; `__init_subclass__` would be too early.
        if Registered in cls.__bases__:
            cls.members = {}
        # Annotations of the class itself: a base without a kind, or a subclass that inherits one, is no member.
        elif "kind" in get_annotations(cls):
            kind = cls.model_fields["kind"].default
            known = cls.members.setdefault(kind, cls)
            if known is not cls:
                raise TypeError(f"the kind {kind!r} of {cls.__module__} is that of {known.__module__}")

    @classmethod
    def registered(cls) -> list[type[Self]]:
        """All members of the family in their order, from all modules of this package."""
        # A member is known once its module is imported. Packages below have no members, and import NumPy.
        for module in pkgutil.iter_modules([str(Path(__file__).parent)], "redraft.methods."):
            if not module.ispkg:
                import_module(module.name)
        return [member for _, member in sorted(cls.members.items(), key=lambda item: (item[1].order, item[0]))]
