#include "engine/state_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/split_float.h"
#include "engine/optimizer/moment_codes.h"

namespace headrace::engine {

namespace {

constexpr int64_t kPiece = 65536;  ///< elements converted at a time
/// Elements of a parameter at most, so that bytes of it fit in 64 bits.
constexpr int64_t kLargestParameter = int64_t{1} << 56;

}  // namespace

StateReader::StateReader(tiers::ExtentStore& store, std::optional<uint64_t> generation,
                         const proto::StateLayout& layout)
    : store_(store),
      generation_(generation),
      layout_(layout),
      format_(state_format_of(layout)),
      dtype_(dtype_from(layout.dtype())),
      sources_(kPurposes) {
  check_layout(layout_);
  for (int m = 0; m < layout_.modules_size(); ++m) {
    const proto::StoredModule& module = layout_.modules(m);
    for (const proto::StoredParameter& parameter : module.parameters()) {
      add_place(parameter, static_cast<size_t>(m));
    }
  }
}

void StateReader::add_place(const proto::StoredParameter& parameter, size_t module) {
  Parameter& whole = parameters_[parameter.name()];
  const Place place{module, parameter.offset(), part_of(parameter)};
  const bool by_columns = parameter.columns() > 0;
  const int64_t next = by_columns ? whole.columns : whole.count;
  const bool is_alike = whole.places.empty() || by_columns == (whole.columns > 0);
  if (!is_alike || place.part.first != next) {
    refuse_layout(fmt::format("elements of parameter {} from {} on come after {}", parameter.name(),
                              place.part.first, next));
  }
  if (place.part.count > kLargestParameter - whole.count) {
    refuse_layout(
        fmt::format("parameter {} of more than {} elements", parameter.name(), kLargestParameter));
  }
  whole.count += place.part.count;
  whole.columns += parameter.columns();
  whole.places.push_back(place);
}

Elements StateReader::count(const std::string& parameter) const {
  const auto found = parameters_.find(parameter);
  return Elements(found == parameters_.end() ? 0 : found->second.count);
}

bool StateReader::has(StateArray array) const {
  return array == StateArray::weights || static_cast<int>(array) <= format_.moments;
}

void StateReader::read(const std::string& parameter, StateArray array, Elements first,
                       std::span<float> out) {
  const auto found = parameters_.find(parameter);
  if (found == parameters_.end()) {
    throw InputError(fmt::format("the run has no parameter '{}'", parameter));
  }
  const auto count = static_cast<int64_t>(out.size());
  if (first.count() < 0 || first.count() + count > found->second.count) {
    throw InputError(fmt::format("elements {} to {} of parameter '{}', which has {}", first.count(),
                                 first.count() + count, parameter, found->second.count));
  }
  sources_kept_ = places_read(found->second, first.count(), count);
  int64_t done = 0;
  for (const Place& place : found->second.places) {
    for_overlaps(place.part, first.count(), count, [&](int64_t from, int64_t at, int64_t length) {
      read_module(place, array, from,
                  out.subspan(static_cast<size_t>(at), static_cast<size_t>(length)));
      done += length;
    });
  }
  if (done != count) {
    refuse_layout(fmt::format("{} of {} elements of parameter {} from {} on", done, count,
                              parameter, first.count()));
  }
}

/// Places that a read like this one goes through again and again: of columns those in its row, or
/// all of them where it is of several rows. Ranges come one after the other.
size_t StateReader::places_read(const Parameter& parameter, int64_t first, int64_t count) {
  if (parameter.columns == 0) {
    return 1;
  }
  if (parameter.columns > kPiece) {  // what is read of one row may come in several reads
    return parameter.places.size();
  }
  size_t places = 0;
  for (const Place& place : parameter.places) {
    bool is_read = false;
    for_overlaps(place.part, first, count, [&](int64_t, int64_t, int64_t) { is_read = true; });
    places += is_read ? 1 : 0;
  }
  return std::max<size_t>(places, 1);
}

/// Elements of the part at `place`, from its element `first` on.
void StateReader::read_module(const Place& place, StateArray array, int64_t first,
                              std::span<float> out) {
  const proto::StoredModule& module = layout_.modules(static_cast<int>(place.module));
  const auto count = static_cast<int64_t>(out.size());
  const int64_t begin = place.offset + first;
  for (const proto::StoredShard& shard : module.shards()) {
    const int64_t from = std::max(begin, shard.first());
    const int64_t to = std::min(begin + count, shard.first() + shard.count());
    if (from < to) {
      read_shard(module, shard, array, from - shard.first(),
                 out.subspan(static_cast<size_t>(from - begin), static_cast<size_t>(to - from)));
    }
  }
}

/// `first` counts from the shard's first element.
void StateReader::read_shard(const proto::StoredModule& module, const proto::StoredShard& shard,
                             StateArray array, int64_t first, std::span<float> out) {
  const StateFormat::Offsets offsets = format_.offsets(Elements(shard.count()));
  if (array == StateArray::weights && module.weights().empty()) {
    array = StateArray::master;  // an imported run: the weights are yet to be rounded from it
  }
  if (array == StateArray::moment1 || array == StateArray::moment2) {
    read_moment(array == StateArray::moment1 ? 0 : 1, shard.state(), offsets, first, out);
    return;
  }
  if (array == StateArray::master && format_.master == MasterPlace::state) {
    read_values(kMaster, shard.state(), offsets.master, first, DType::f32, out);
    return;
  }
  read_values(kWeights, module.weights(), Bytes(0), shard.first() + first, dtype_, out);
  if (array == StateArray::weights || format_.master == MasterPlace::weight) {
    return;
  }
  std::vector<uint16_t> low(out.size());
  read_bytes(kMaster, shard.state(),
             offsets.master.count() + first * static_cast<int64_t>(sizeof(uint16_t)),
             std::as_writable_bytes(std::span(low)));
  for (size_t i = 0; i < out.size(); ++i) {
    const auto weight = static_cast<uint16_t>(std::bit_cast<uint32_t>(out[i]) >> 16U);
    out[i] = join({weight, low[i]});
  }
}

/// Elements [first, first + out.size()) of moment `number` of a shard.
void StateReader::read_moment(size_t number, const std::string& object,
                              const StateFormat::Offsets& offsets, int64_t first,
                              std::span<float> out) {
  const Purpose purpose = number == 0 ? kMoment1 : kMoment2;
  if (format_.moment_dtype != DType::u8) {
    read_values(purpose, object, offsets.moment[number], first, format_.moment_dtype, out);
    return;
  }
  const MomentCode& code = number == 0 ? kSignedMoment : kSquareMoment;
  const int64_t block = kMomentBlock.count();
  std::vector<std::byte> scales;
  for (size_t done = 0; done < out.size();) {
    const auto part = out.subspan(done, std::min<size_t>(out.size() - done, kPiece));
    const int64_t at = first + static_cast<int64_t>(done);
    const int64_t first_block = at / block;
    const int64_t last_block = (at + static_cast<int64_t>(part.size()) - 1) / block;
    scales.resize(static_cast<size_t>(last_block - first_block + 1));
    bytes_.resize(part.size());
    read_bytes(purpose, object, offsets.moment[number].count() + at, bytes_);
    read_bytes(number == 0 ? kScale1 : kScale2, object, offsets.scale[number].count() + first_block,
               scales);
    for (size_t i = 0; i < part.size(); ++i) {
      const int64_t in_block = (at + static_cast<int64_t>(i)) / block - first_block;
      part[i] = decode_moment(code, std::to_integer<uint8_t>(bytes_[i]),
                              std::to_integer<uint8_t>(scales[static_cast<size_t>(in_block)]));
    }
    done += part.size();
  }
}

/// Elements [first, first + out.size()) of an array of `dtype` that begins at byte `at`.
void StateReader::read_values(Purpose purpose, const std::string& object, Bytes at, int64_t first,
                              DType dtype, std::span<float> out) {
  const int64_t width = size_of(dtype).count();
  for (size_t done = 0; done < out.size();) {
    const auto part = out.subspan(done, std::min<size_t>(out.size() - done, kPiece));
    bytes_.resize(part.size() * static_cast<size_t>(width));
    read_bytes(purpose, object, at.count() + (first + static_cast<int64_t>(done)) * width, bytes_);
    for (size_t i = 0; i < part.size(); ++i) {
      part[i] = load_float(bytes_.data() + i * static_cast<size_t>(width), dtype);
    }
    done += part.size();
  }
}

tiers::ValueReader& StateReader::reader_of(Purpose purpose, const std::string& object) {
  std::deque<Source>& sources = sources_[purpose];
  for (const Source& source : sources) {
    if (source.object == object) {
      return *source.reader;
    }
  }
  while (sources.size() >= sources_kept_) {
    sources.pop_front();
  }
  sources.push_back({object, store_.open_value(generation_, object)});
  return *sources.back().reader;
}

void StateReader::read_bytes(Purpose purpose, const std::string& object, int64_t offset,
                             std::span<std::byte> out) {
  tiers::ValueReader& reader = reader_of(purpose, object);
  if (offset + static_cast<int64_t>(out.size()) > reader.size().count()) {
    refuse_layout(fmt::format("object '{}' has {} bytes, but {} are asked for at {}", object,
                              reader.size().count(), out.size(), offset));
  }
  reader.read(offset, out);
}

}  // namespace headrace::engine
