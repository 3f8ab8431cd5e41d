"""The one error a user meets: what was found, and what to do about it."""


class HeedfulError(Exception):
    """A mistake of the user's or of the world's (a full disk), never one of ours.

    >>> print(HeedfulError("no such file: pairs.tsv", hint="check the path"))
    no such file: pairs.tsv
    """

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint
