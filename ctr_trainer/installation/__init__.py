"""Installation steps that compile code: the build of Horovod, and the Numba kernels."""
