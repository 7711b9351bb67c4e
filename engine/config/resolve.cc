#include "engine/config/resolve.h"

#include "base/error.h"
#include "engine/config/resolver.h"
#include "proto/schema.h"

namespace headrace::engine {

std::string show(double value) {
  return fmt::format("{}", value);
}

std::string show(int64_t value) {
  return fmt::format("{}", value);
}

std::string show(uint64_t value) {
  return fmt::format("{}", value);
}

std::string show(Bytes value) {
  return format_bytes(value);
}

std::string show(Elements value) {
  return fmt::format("{} elements", value.count());
}

std::string show(DType value) {
  return std::string(to_string(value));
}

void Resolver::note_auto(const std::string& path, const std::string& value, std::string_view why) {
  if (automatic(path) && noted_autos_.insert(path).second) {
    note(LogLevel::info, "{}: \"auto\" became {} ({})", path, value, why);
  }
}

void Resolver::note_other_autos() {
  proto::for_each_key(*proto::DsConfig::descriptor(), "",
                      [this](const std::string& path, const auto& field) {
                        note_auto(path, proto::default_text(field), "the default");
                      });
}

bool Resolver::accepts(const std::string& path, double value) {
  const auto* const key = proto::key_at(*proto::DsConfig::descriptor(), path);
  if (key == nullptr || proto::in_range(proto::rule_of(*key), value)) {
    return true;
  }
  problems_.add("{}: {} is out of range; the value must be {}", path, value,
                proto::range_text(proto::rule_of(*key)));
  return false;
}

Resolution Resolver::run(const std::string& source) {
  resolve_batch();
  resolve_dtype();
  resolve_loss_scale();
  resolve_optimizer();
  resolve_scheduler();
  resolve_packing();
  resolve_offload();
  resolve_liveness();
  resolve_aio();
  resolve_headrace();
  problems_.throw_if_any(source);
  note_other_autos();
  return std::move(result_);
}

Resolution resolve(const proto::DsConfig& config, const ResolveContext& context,
                   const std::string& source) {
  return Resolver(config, context).run(source);
}

}  // namespace headrace::engine
