#pragma once

/// Include last in a source file whose results must be the same bits on every instruction set:
/// from here to the end of the file the compiler does not fuse a * b + c into one rounding, neither
/// in plain arithmetic nor in vector intrinsics. (g++ fuses by default wherever the target has FMA;
/// clang fuses within one expression.) g++ leaves out constructors, which it compiles as clones:
/// let them call a function that is not inlined.
#if defined(__clang__)
#pragma clang fp contract(off)
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif
