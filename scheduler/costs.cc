#include "scheduler/costs.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"

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
  if (from == Tier::nvme && to != Tier::nvme) {
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

double rate_of(const Rates& rates, Lane lane) {
  switch (lane) {
    case Lane::nvme_read:
      return rates.nvme_read;
    case Lane::nvme_write:
      return rates.nvme_write;
    case Lane::host_to_device:
      return rates.host_to_device;
    case Lane::device_to_host:
      return rates.device_to_host;
    case Lane::compute:
    case Lane::cpu_optimizer:
      break;
  }
  throw InternalError("internal error: a lane of operations has no rate");
}

double direct_rate(const Rates& rates) {
  return std::min(rates.direct_share * rates.nvme_read, rates.host_to_device);
}

double transfer_rate(const Rates& rates, Tier from, Tier to) {
  return is_direct(from, to) ? direct_rate(rates) : rate_of(rates, transfer_lane(from, to));
}

double latency_of(const Rates& rates, Lane lane) {
  switch (lane) {
    case Lane::nvme_read:
    case Lane::nvme_write:
      return rates.nvme_latency;
    case Lane::host_to_device:
    case Lane::device_to_host:
      return rates.link_latency;
    case Lane::compute:
    case Lane::cpu_optimizer:
      break;
  }
  return 0;
}

double drive_share(const Rates& rates) {
  return rates.nvme_both > 0 ? std::min(1.0, rates.nvme_both / (rates.nvme_read + rates.nvme_write))
                             : 1;
}

Rates under_load(Rates rates) {
  const double share = drive_share(rates);
  rates.nvme_read *= share;
  rates.nvme_write *= share;
  rates.nvme_both = 0;
  return rates;
}

DriveSeconds drive_seconds(const Rates& rates, const DriveSeconds& alone) {
  const double both = std::min(alone.reading, alone.writing);
  // A drive that does less of both than of one takes no longer than one after the other.
  const double slowed = both / std::max(drive_share(rates), 0.5);
  return {alone.reading - both + slowed, alone.writing - both + slowed};
}

LinkShares link_shares(const Rates& rates, double drive) {
  const double wanted = drive * direct_rate(rates);
  const double given = std::min(wanted, rates.host_to_device / 2);
  return {drive * given / wanted, 1 - given / rates.host_to_device};
}

double transfer_seconds(const Rates& rates, Bytes size, Tier from, Tier to) {
  return static_cast<double>(size.count()) / transfer_rate(rates, from, to) +
         latency_of(rates, transfer_lane(from, to));
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

double occupancy_of(const CompileInput& input, const Action& action) {
  switch (action.kind) {
    case ActionKind::transfer:
      return static_cast<double>((*input.objects)[index_of(action.object)].size.count()) /
             transfer_rate(input.rates, action.from, action.to);
    case ActionKind::operation:
      return input.trace->operations[action.operation].seconds;
    default:
      return 0;
  }
}

}  // namespace headrace::scheduler
