#include "scheduler/costs.h"

#include "base/check.h"

namespace headrace::scheduler {

std::string_view to_string(Lane lane) {
  switch (lane) {
    case Lane::nvme_read:
      return "nvme_read";
    case Lane::nvme_write:
      return "nvme_write";
    case Lane::host_to_device:
      return "host_to_device";
    case Lane::device_to_host:
      return "device_to_host";
    case Lane::compute:
      return "compute";
    case Lane::cpu_optimizer:
      return "cpu_optimizer";
  }
  return "?";
}

Lane transfer_lane(Tier from, Tier to) {
  if (from == Tier::nvme && to == Tier::host) {
    return Lane::nvme_read;
  }
  if (from == Tier::host && to == Tier::nvme) {
    return Lane::nvme_write;
  }
  if (from == Tier::host && to == Tier::device) {
    return Lane::host_to_device;
  }
  HR_CHECK(from == Tier::device && to == Tier::host, "no lane from {} to {}", to_string(from),
           to_string(to));
  return Lane::device_to_host;
}

double transfer_seconds(const Rates& rates, Bytes size, Tier from, Tier to) {
  double rate = 0;
  switch (transfer_lane(from, to)) {
    case Lane::nvme_read:
      rate = rates.nvme_read;
      break;
    case Lane::nvme_write:
      rate = rates.nvme_write;
      break;
    case Lane::host_to_device:
      rate = rates.host_to_device;
      break;
    default:
      rate = rates.device_to_host;
      break;
  }
  return rates.transfer_latency + static_cast<double>(size.count()) / rate;
}

std::optional<Lane> lane_of(const CompileInput& input, const Action& action) {
  switch (action.kind) {
    case ActionKind::transfer:
      return transfer_lane(action.from, action.to);
    case ActionKind::operation:
      return input.trace->operations[action.operation].lane;
    default:
      return std::nullopt;
  }
}

double seconds_of(const CompileInput& input, const Action& action) {
  switch (action.kind) {
    case ActionKind::transfer:
      return transfer_seconds(input.rates, (*input.objects)[index_of(action.object)].size,
                              action.from, action.to);
    case ActionKind::operation:
      return input.trace->operations[action.operation].seconds;
    default:
      return 0;
  }
}

}  // namespace headrace::scheduler
