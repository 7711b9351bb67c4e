# Cross compiles for 64-bit Arm with Debian's g++; what is built runs in qemu's emulation. Libraries are
# those below HEADRACE_AARCH64_ROOT, where scripts/neon_check.sh unpacks them.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc-12)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++-12)
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES HEADRACE_AARCH64_ROOT)
set(CMAKE_FIND_ROOT_PATH "${HEADRACE_AARCH64_ROOT}" /usr/lib/gcc-cross/aarch64-linux-gnu /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
# The cross compiler finds no linker but its own.
set(HEADRACE_MOLD OFF CACHE INTERNAL "")
set(HEADRACE_LLD OFF CACHE INTERNAL "")
