"""The environment of the training programs that benchmarks compare: the same for all of them."""
import os


def training():
    """OpenMP must not spin, as the launcher has it; freed memory stays mapped, else malloc alone wins 20%."""
    return dict(os.environ, OMP_WAIT_POLICY="passive", OMP_DYNAMIC="false", OMP_PROC_BIND="false",
                MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_=str(1 << 40))
