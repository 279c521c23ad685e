"""The shared segment as seen from outside (docs/segment.md): which updates are under way, and how far.

Reads through the descriptor of a process that holds it; nothing is written.
"""
import mmap
import os
import struct

PARAMETER = 0
UPDATING = 2
CURSOR_BYTES = 512
RECORD_BYTES = 64
VECTOR = 16


class SegmentView:

    def __init__(self, pid):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{fd}"
            if "harmony-segment" in os.readlink(path):
                break
        else:
            raise FileNotFoundError(f"process {pid} holds no segment")
        with open(path, "rb") as f:
            start = f.read(4096)
            areas = [struct.unpack_from("<4Q", start, 32 + 32 * i) for i in range(5)]
            _, job, records, self._cursors, data = areas
            self._map = mmap.mmap(f.fileno(), data[0], prot=mmap.PROT_READ)
        self._record_count, self._cursor_count = struct.unpack_from("<2Q", self._map, job[0] + 80)
        self._parameters = [records[0] + RECORD_BYTES * i for i in range(self._record_count)
                            if self._key(records[0] + RECORD_BYTES * i) >> 56 == PARAMETER]

    def _key(self, at):
        return struct.unpack_from("<Q", self._map, at + 24)[0]

    def close(self):
        self._map.close()

    def parameters(self):
        return len(self._parameters)

    def update_under_way(self):
        """Whether a parameter is being overwritten now."""
        return any(self._map[at] & 3 == UPDATING for at in self._parameters)

    def chunks_half_done(self):
        """Chunks of parameters being overwritten of which some vectors, but not all, are written."""
        blocks = {self._key(at) >> 28 & 0xfffffff for at in self._parameters if self._map[at] & 3 == UPDATING}
        count = 0
        for i in range(self._cursor_count):
            at = self._cursors[0] + CURSOR_BYTES * i
            block, = struct.unpack_from("<i", self._map, at + 8)
            elements, = struct.unpack_from("<Q", self._map, at + 32)
            position, = struct.unpack_from("<Q", self._map, at + 64)
            if block in blocks and 0 < position <= -(-elements // VECTOR):
                count += 1
        return count
