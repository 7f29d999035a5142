"""The GPU kernels, one file an architecture and direction; importing a module here imports triton."""
