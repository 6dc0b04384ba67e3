"""Compilers: what the compilers of accelerators say of a train step, with and without a device."""
