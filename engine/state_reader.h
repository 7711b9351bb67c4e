#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/units.h"
#include "engine/state_layout.h"
#include "proto/run_state.pb.h"
#include "tiers/extent_store.h"

namespace headrace::engine {

/// The arrays of training state, as numbers. `weights` are those that compute uses; `master` the
/// fp32 values that they were rounded from.
enum class StateArray : uint8_t { master, moment1, moment2, weights };

/// Reads the training state of a generation by logical parameter and range, whatever shards and
/// formats it is stored in. The store must outlive it. Keeps one extent per array and the weights
/// in memory: up to 64 MiB, 96 MiB with 8-bit moments, times the tiles by columns that what is read
/// of a row lies in. Not thread-safe; blocks. Errors: IoError for damaged bytes; InputError where
/// layout and objects contradict each other.
class StateReader {
 public:
  /// Of a snapshot or, without `generation`, the committed generation.
  StateReader(tiers::ExtentStore& store, std::optional<uint64_t> generation,
              const proto::StateLayout& layout);

  const proto::StateLayout& layout() const { return layout_; }
  bool has(const std::string& parameter) const { return parameters_.contains(parameter); }
  /// Elements of a parameter, over all modules; 0 for one that the run does not have.
  Elements count(const std::string& parameter) const;
  /// Whether the state has this array (master and weights always).
  bool has(StateArray array) const;
  /// Elements [first, first + out.size()) of a parameter as fp32.
  void read(const std::string& parameter, StateArray array, Elements first, std::span<float> out);

 private:
  /// Where a part of a parameter is.
  struct Place {
    size_t module = 0;
    int64_t offset = 0;  ///< in the packed vector
    model::TensorPart part;
  };
  /// All of a parameter, its parts in order: ranges of elements, or columns of all rows.
  struct Parameter {
    std::vector<Place> places;
    int64_t count = 0;
    int64_t columns = 0;
  };
  /// A reader of an object.
  struct Source {
    std::string object;
    std::unique_ptr<tiers::ValueReader> reader;
  };
  enum Purpose : uint8_t { kMaster, kMoment1, kMoment2, kScale1, kScale2, kWeights, kPurposes };

  void add_place(const proto::StoredParameter& parameter, size_t module);
  static size_t places_read(const Parameter& parameter, int64_t first, int64_t count);
  void read_module(const Place& place, StateArray array, int64_t first, std::span<float> out);
  void read_shard(const proto::StoredModule& module, const proto::StoredShard& shard,
                  StateArray array, int64_t first, std::span<float> out);
  void read_moment(size_t number, const std::string& object, const StateFormat::Offsets& offsets,
                   int64_t first, std::span<float> out);
  void read_values(Purpose purpose, const std::string& object, Bytes at, int64_t first, DType dtype,
                   std::span<float> out);
  tiers::ValueReader& reader_of(Purpose purpose, const std::string& object);
  void read_bytes(Purpose purpose, const std::string& object, int64_t offset,
                  std::span<std::byte> out);

  tiers::ExtentStore& store_;
  std::optional<uint64_t> generation_;
  proto::StateLayout layout_;
  StateFormat format_;
  DType dtype_;
  std::map<std::string, Parameter> parameters_;
  std::vector<std::deque<Source>> sources_;  ///< [purpose]: the objects last used
  size_t sources_kept_ = 1;                  ///< of each purpose
  std::vector<std::byte> bytes_;
};

}  // namespace headrace::engine
