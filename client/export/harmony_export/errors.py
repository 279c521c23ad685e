"""The one exception for models that cannot be exported exactly."""

from __future__ import annotations


class ExportError(Exception):
    """Says what cannot be exported, where in the model it stands, and what to change."""

    def __init__(self, what: str, where: str = "", fix: str = "") -> None:
        self.what = what
        self.where = where
        self.fix = fix
        text = f"{where}: {what}" if where else what
        super().__init__(f"{text}. {fix}" if fix else text)
