#include "aio/profile.h"

#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>
#include <xxhash.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/check.h"
#include "base/error.h"

namespace headrace::aio {

namespace {

constexpr uint32_t kFormatVersion = 1;

/// For the texts of protobuf, which holds no others: a folder's name need not be UTF-8.
std::string as_utf8(const std::string& text) {
  using Json = nlohmann::json;
  return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace))
      .get<std::string>();
}

void set_latency(const Latency& from, proto::LatencyProfile& to) {
  to.set_p50_ms(from.p50_ms);
  to.set_p99_ms(from.p99_ms);
  to.set_p999_ms(from.p999_ms);
  to.set_transfers(from.transfers);
}

void set_point(const ProbePoint& from, proto::StoragePoint& to) {
  to.set_block_size(from.block_size.count());
  to.set_queue_depth(from.queue_depth);
  to.set_read_rate(from.rates.read);
  to.set_write_rate(from.rates.write);
  to.set_mixed_rate(from.rates.mixed);
  set_latency(from.read_latency, *to.mutable_read_latency());
  set_latency(from.write_latency, *to.mutable_write_latency());
  to.set_left_out(from.left_out);
}

void set_device(const StorageIdentity& from, proto::StorageDevice& to) {
  to.set_file_system(from.file_system);
  to.set_name(from.device);
  to.set_model(as_utf8(from.model));
  to.set_serial(as_utf8(from.serial));
  to.set_numa_node(from.numa_node);
  to.set_rotational(from.rotational.value_or(false));
  to.set_free_bytes(from.free_space.count());
  to.set_wear_percent(from.wear.percent_used.value_or(-1));
  to.set_wear_unknown(from.wear.unknown);
  to.set_bytes_written(from.wear.bytes_written);
  to.set_spare_percent(from.wear.percent_used ? from.wear.spare_percent : -1);
  for (const std::string& warning : from.wear.warnings) {
    to.add_warnings(warning);
  }
}

proto::Submission submission_of(SubmissionMode mode) {
  switch (mode) {
    case SubmissionMode::interrupt:
      return proto::INTERRUPT;
    case SubmissionMode::sq_poll:
      return proto::SQ_POLL;
    case SubmissionMode::io_poll:
      return proto::IO_POLL;
  }
  return proto::INTERRUPT;
}

proto::CacheProfile::Kind kind_of(CacheKind kind) {
  switch (kind) {
    case CacheKind::none:
      return proto::CacheProfile::NONE;
    case CacheKind::memory_file_system:
      return proto::CacheProfile::MEMORY_FILE_SYSTEM;
    case CacheKind::buffered:
      return proto::CacheProfile::BUFFERED;
    case CacheKind::page_cache:
      return proto::CacheProfile::PAGE_CACHE;
    case CacheKind::memory_rate:
      return proto::CacheProfile::MEMORY_RATE;
    case CacheKind::fast_reread:
      return proto::CacheProfile::FAST_REREAD;
  }
  return proto::CacheProfile::NONE;
}

void set_findings(const ProbeReport& report, proto::StorageProfile& profile) {
  proto::CacheProfile& cache = *profile.mutable_cache();
  cache.set_kind(kind_of(report.cache.kind));
  cache.set_first_read_rate(report.cache.first_read_rate);
  cache.set_reread_rate(report.cache.reread_rate);
  cache.set_memory_rate(report.cache.memory_rate);
  cache.set_cached_share(report.cache.cached_share);
  proto::ThinProfile& thin = *profile.mutable_thin();
  thin.set_judged(report.thin.is_judged);
  thin.set_unwritten_read_fast(report.thin.unwritten_read_fast);
  thin.set_first_write_slow(report.thin.first_write_slow);
  thin.set_unwritten_read_rate(report.thin.unwritten_read_rate);
  thin.set_written_read_rate(report.thin.written_read_rate);
  thin.set_first_write_rate(report.thin.first_write_rate);
  thin.set_rewrite_rate(report.thin.rewrite_rate);
  proto::SustainedProfile& sustained = *profile.mutable_sustained_write();
  sustained.set_judged(report.cliff.is_judged);
  sustained.set_cliff(report.cliff.has_cliff);
  sustained.set_burst_rate(report.cliff.burst_rate);
  sustained.set_sustained_rate(report.cliff.sustained_rate);
  sustained.set_cliff_bytes(report.cliff.at.count());
  sustained.set_written_bytes(report.cliff.written.count());
  sustained.set_interval_seconds(report.writes.interval_seconds);
  sustained.mutable_interval_rates()->Assign(report.writes.rates.begin(),
                                             report.writes.rates.end());
  profile.mutable_duplex()->set_ratio(report.duplex);
}

}  // namespace

proto::StorageProfile to_profile(const ProbeReport& report) {
  HR_CHECK(report.best < report.points.size(), "best={} points={}", report.best,
           report.points.size());
  proto::StorageProfile profile;
  profile.set_key(report.storage.key);
  profile.set_path(as_utf8(report.path));
  profile.set_measured_unix_seconds(report.unix_seconds);
  set_device(report.storage, *profile.mutable_device());
  profile.set_engine(report.engine);
  profile.set_file_size(report.file_size.count());
  profile.set_direct(report.is_direct);
  set_point(report.points[report.best], *profile.mutable_best());
  for (const ProbePoint& point : report.points) {
    set_point(point, *profile.add_points());
  }
  for (const ModeTrial& trial : report.modes) {
    proto::ModeRate& mode = *profile.add_modes();
    mode.set_mode(submission_of(trial.mode));
    mode.set_read_rate(trial.rates.read);
    mode.set_write_rate(trial.rates.write);
    mode.set_mixed_rate(trial.rates.mixed);
    mode.set_left_out(trial.left_out);
    mode.set_refused(trial.is_refused);
    mode.set_chosen(trial.mode == report.best_mode);
  }
  set_findings(report, profile);
  return profile;
}

std::string to_json(const proto::HardwareProfile& profile) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(profile, &json, options);
  HR_CHECK(status.ok(), "a profile cannot be written as JSON: {}", status.ToString());
  return json + (json.ends_with('\n') ? "" : "\n");
}

std::string encode_profile(const proto::HardwareProfile& profile) {
  proto::ProfileFile file;
  file.set_format_version(kFormatVersion);
  file.set_profile(profile.SerializeAsString());
  file.set_xxh3_64(XXH3_64bits(file.profile().data(), file.profile().size()));
  return file.SerializeAsString();
}

proto::HardwareProfile decode_profile(const std::string& bytes, const std::string& source) {
  proto::ProfileFile file;
  if (!file.ParseFromString(bytes) || file.format_version() == 0) {
    throw InputError(source + " is not a hardware profile");
  }
  if (file.format_version() > kFormatVersion) {
    throw InputError(
        fmt::format("{} has format {}, this version of Headrace knows formats up to {}", source,
                    file.format_version(), kFormatVersion));
  }
  proto::HardwareProfile profile;
  if (XXH3_64bits(file.profile().data(), file.profile().size()) != file.xxh3_64() ||
      !profile.ParseFromString(file.profile())) {
    throw InputError(source + " is damaged: its checksum is wrong");
  }
  return profile;
}

}  // namespace headrace::aio
