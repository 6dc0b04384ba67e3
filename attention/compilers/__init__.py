"""Compilers: what the compilers of accelerators say of a kernel, without a device."""
