"""Compressed DICOM pixel data, decoded in a process apart.

The decoders are C and C++ libraries: damaged data can make one abort, crash or loop, and neither
may take the reader with it. The process serves one frame after the other, as long as its owner
lives. Run as a module, this file is that process; it imports nothing else of the package.
Format: ISO/IEC 10918-1 (JPEG), 14495-1 (JPEG-LS), 15444-1 (JPEG 2000).
"""

from __future__ import annotations

import atexit
import json
import os
import struct
import subprocess
import sys
import tempfile
import threading
import warnings
from typing import IO, Any

import numpy as np
import numpy.typing as npt

SECONDS = 120.0
"""A frame that takes longer is given up."""
COMMAND = (sys.executable, "-m", "benchmd_ray.data.readers.codec")
"""What serves."""
CUT_OFF = b"premature end"
"""What JPEG libraries print where they make up the rest of an image."""
NO_FRAME = (0xFFC4, 0xFFC8, 0xFFCC)
"""Markers among those of JPEG frames that start none: Huffman tables, extensions, conditioning."""


class CodecError(Exception):
    """A frame cannot be decoded."""


def frame_size(stream: bytes) -> tuple[int, int]:
    """Width and height that a JPEG, JPEG-LS or JPEG 2000 stream claims, nothing decoded.

    Raises:
        CodecError: It claims none.
    """
    try:
        if stream[:2] == b"\xff\xd8":
            return _jpeg_size(stream)
        # JPEG 2000, also within a JP2 file: start of stream and of size segment
        start = stream.index(b"\xff\x4f\xff\x51")
        right, bottom, left, top = struct.unpack_from(">4I", stream, start + 8)
    except (ValueError, struct.error):
        raise CodecError("its compressed data does not say its size") from None
    return right - left, bottom - top


def _jpeg_size(stream: bytes) -> tuple[int, int]:
    offset = 2
    while True:
        marker, length = struct.unpack_from(">HH", stream, offset)
        if marker == 0xFFFF:  # fill byte
            offset += 1
        elif marker == 0xFFF7 or (0xFFC0 <= marker <= 0xFFCF and marker not in NO_FRAME):
            height, width = struct.unpack_from(">HH", stream, offset + 5)
            return width, height
        else:
            offset += 2 + length


def decompress(
    frame: bytes, syntax: str, plugin: str, options: dict[str, Any]
) -> npt.NDArray[np.generic]:
    """Decode one frame in the process apart.

    Args:
        frame: Its compressed data.
        syntax: UID of the transfer syntax.
        plugin: Name of pydicom's plug-in that decodes it.
        options: What pydicom's decoder has to know of the header, such as ``rows``.

    Returns:
        (y, x), or (y, x, sample) with colours as RGB.

    Raises:
        CodecError: It cannot be decoded, or the decoder crashed or did not end.
    """
    head = {"syntax": syntax, "plugin": plugin, "options": options}
    with _lock:
        try:
            return _decoder().decode(head, frame)
        except _CrashError:  # once more, should the process have been killed for want of memory
            return _decoder().decode(head, frame)


_lock = threading.Lock()


class _CrashError(CodecError):
    """The process apart has ended."""


class _Decoder:
    """The process apart, seen from its owner."""

    current: _Decoder | None = None
    """The one in use; it is replaced after a crash, and in a forked process."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt is for its owner, who then ends it
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        atexit.register(self.close)

    def usable(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def close(self) -> None:
        if self.owner == os.getpid():
            self.process.kill()
            self.process.communicate()
        atexit.unregister(self.close)

    def decode(self, head: dict[str, Any], frame: bytes) -> npt.NDArray[np.generic]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self.process.kill()

        timer = threading.Timer(SECONDS, give_up)
        timer.start()
        try:
            _send(self.process.stdin, head, frame)
            answer, values = _receive(self.process.stdout)
        except BaseException as error:  # also an interrupt: half an answer must not stay behind
            self.close()
            if late.is_set():
                raise CodecError(f"the decoder took more than {SECONDS:g} s") from None
            if isinstance(error, EOFError | OSError):
                raise _CrashError("the decoder crashed") from None
            raise
        finally:
            timer.cancel()
        if "error" in answer:
            raise CodecError(answer["error"])
        return np.frombuffer(values, answer["dtype"]).reshape(answer["shape"])


def _decoder() -> _Decoder:
    """The process in use, or a new one where it has ended or is another process's."""
    if _Decoder.current is not None and not _Decoder.current.usable():
        _Decoder.current.close()
        _Decoder.current = None
    if _Decoder.current is None:
        _Decoder.current = _Decoder()
    return _Decoder.current


def _send(file: IO[bytes], head: dict[str, Any], data: bytes) -> None:
    """A message: the lengths of both parts, a head in JSON, data."""
    text = json.dumps(head).encode()
    file.write(struct.pack(">IQ", len(text), len(data)) + text)
    file.write(data)
    file.flush()


def _receive(file: IO[bytes]) -> tuple[dict[str, Any], bytearray]:
    """The next message.

    Raises:
        EOFError: There is none, or not all of it.
    """
    head, data = (bytearray(n) for n in struct.unpack(">IQ", _filled(file, bytearray(12))))
    return json.loads(_filled(file, head)), _filled(file, data)


def _filled(file: IO[bytes], buffer: bytearray) -> bytearray:
    if file.readinto(buffer) != len(buffer):  # type: ignore[attr-defined]
        raise EOFError
    return buffer


def serve() -> None:
    """Decode what comes on standard input, answer on standard output, until the input ends."""
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "wb")
    with tempfile.TemporaryFile(buffering=0) as printed, open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(printed.fileno(), 2)  # libraries print where they do not raise
        while True:
            try:
                head, frame = _receive(sys.stdin.buffer)
            except EOFError:
                return
            printed.truncate(0)
            printed.seek(0)
            try:
                values = _decoded(head, bytes(frame))
                printed.seek(0)
                if CUT_OFF in printed.read():
                    raise EOFError
                _send(answers, {"dtype": values.dtype.str, "shape": values.shape}, values.tobytes())
            except Exception as error:
                name = "cut off" if isinstance(error, EOFError) else type(error).__name__
                _send(answers, {"error": f"its compressed data cannot be decoded ({name})"}, b"")


def _decoded(head: dict[str, Any], frame: bytes) -> npt.NDArray[np.generic]:
    from pydicom.encaps import encapsulate
    from pydicom.pixels.decoders.base import get_decoder

    values, _ = get_decoder(head["syntax"]).as_array(
        encapsulate([frame]), index=0, decoding_plugin=head["plugin"], **head["options"]
    )
    return np.ascontiguousarray(values)


if __name__ == "__main__":
    serve()
