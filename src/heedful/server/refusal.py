"""The one way a request ends without its result."""


class RefusedError(Exception):
    """A request that is answered with an error: the client's mistake, or no room."""

    def __init__(
        self, status: int, message: str, *, retry_after: int | None = None, final: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after
        """Seconds after which it is worth trying again."""
        self.final = final
        """Whether the connection ends with it, for more of the request may come than anyone wants to read."""


def malformed(message: str) -> RefusedError:
    """A request that cannot be understood: 400."""
    return RefusedError(400, f"Invalid request: {message}")
