#include "engine/run_report.h"

namespace headrace::engine {

using scheduler::Lane;

TimeSplit& TimeSplit::operator+=(const TimeSplit& part) {
  compute += part.compute;
  cpu_optimizer += part.cpu_optimizer;
  nvme_read += part.nvme_read;
  nvme_write += part.nvme_write;
  host_to_device += part.host_to_device;
  device_to_host += part.device_to_host;
  other += part.other;
  total += part.total;
  return *this;
}

double& part_of(TimeSplit& split, std::optional<Lane> lane) {
  if (!lane) {
    return split.other;
  }
  switch (*lane) {
    case Lane::nvme_read:
      return split.nvme_read;
    case Lane::nvme_write:
      return split.nvme_write;
    case Lane::host_to_device:
      return split.host_to_device;
    case Lane::device_to_host:
      return split.device_to_host;
    case Lane::compute:
      return split.compute;
    case Lane::cpu_optimizer:
      return split.cpu_optimizer;
  }
  return split.other;
}

}  // namespace headrace::engine
