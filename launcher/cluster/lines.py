"""Lines out of pieces: whatever their length, wherever a piece ends."""


class LineTooLong(ValueError):
    """A line grew beyond the limit without an end."""


class LineSplitter:
    """Collects bytes and gives back complete lines, without their newline.

    Works on bytes, so a character split between two pieces comes out whole. ``limit`` bounds the memory that a line
    without an end can take, in bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """Take one piece and return the lines that it completes."""
        searched = len(self._rest)
        self._rest += piece
        if self._rest.find(b"\n", searched) < 0:
            if len(self._rest) > self._limit:
                raise LineTooLong(f"a line of more than {self._limit} bytes")
            return []
        *lines, rest = self._rest.split(b"\n")
        self._rest = bytearray(rest)
        return [bytes(line) for line in lines]

    @property
    def rest(self) -> bytes:
        """What came after the last newline."""
        return bytes(self._rest)
