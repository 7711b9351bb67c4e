#pragma once

#include <cstdint>

namespace headrace::bench {

/// The arrays that one optimizer update goes through, by what it does with them. Null from the
/// first that there is not.
struct TrafficArrays {
  float* read_write4[3] = {};
  uint16_t* read_write2[4] = {};
  uint8_t* read_write1[2] = {};
  const float* read4 = nullptr;
  const uint16_t* read2 = nullptr;
  uint16_t* write2 = nullptr;
  int64_t count = 0;
};

/// Moves the bytes of an update through its arrays in the order, and with the blocks, prefetches
/// and streaming stores of an update, and computes nothing. Values stay as they are, but for
/// write2, which becomes zero. The arrays start at borders of 64 bytes.
void move_traffic(const TrafficArrays& arrays);

}  // namespace headrace::bench
