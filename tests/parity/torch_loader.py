"""Makes `import torch` work where the CUDA toolkit's libraries are installed outside Python.

The wheel links against them even when no GPU is used. Importing this module loads them from
/usr/local/cuda first, if they are there; then `import torch` finds them loaded.
"""
import ctypes
import glob
import os

_LIBRARIES = ["libnvJitLink", "libcublasLt", "libcublas", "libcufft", "libcurand", "libcusparse",
              "libcusolver", "libnvrtc", "libnccl", "libcudnn"]


def _preload(folder="/usr/local/cuda/lib64"):
    for name in _LIBRARIES:
        for path in glob.glob(os.path.join(folder, name + ".so.[0-9]*")):
            try:
                ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
                break
            except OSError:
                continue


_preload()
