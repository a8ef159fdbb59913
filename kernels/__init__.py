"""CPU kernels in C++ with torch fallbacks."""
