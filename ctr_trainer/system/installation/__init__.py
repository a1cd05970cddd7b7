"""Installation steps that compile code: the build of Horovod, and the compilation of the Numba kernels."""
