#include "engine/doctor/doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "aio/profile_catalog.h"
#include "base/error.h"

namespace headrace::engine {

namespace {

std::optional<proto::StorageProfile> stored_profile(const aio::DriveFacts& facts) {
  try {
    return facts.absent.empty() ? aio::ProfileCatalog::standard().storage_by_key(facts.identity.key)
                                : std::nullopt;
  } catch (const InputError&) {
    return std::nullopt;  // there is no folder for profiles
  }
}

void append(std::vector<Finding> from, std::vector<Finding>& to) {
  std::move(from.begin(), from.end(), std::back_inserter(to));
}

}  // namespace

std::vector<Finding> check_gpus(const GpuFacts& facts) {
  Finding finding{"accelerators", "NVIDIA GPU"};
  finding.values = {{"on_bus", int64_t{facts.on_bus}},
                    {"usable", static_cast<int64_t>(facts.gpus.size())},
                    {"driver", facts.driver},
                    {"cuda_version", int64_t{facts.cuda_version}},
                    {"backend", facts.backend}};
  if (facts.gpus.empty() && facts.on_bus == 0 && facts.driver.empty()) {
    finding.fact = "no NVIDIA GPU found";
    finding.meaning = "Operations run on the CPU; --device-memory emulates a device.";
    return {finding};
  }
  for (const Gpu& gpu : facts.gpus) {
    finding.fact +=
        fmt::format("{}{}{}{}", finding.fact.empty() ? "" : "; ", gpu.name,
                    gpu.memory > Bytes(0) ? ", " + format_bytes(gpu.memory) : "",
                    gpu.numa_node >= 0 ? fmt::format(", NUMA node {}", gpu.numa_node) : "");
  }
  if (facts.gpus.empty()) {
    finding.fact = fmt::format("{} on the PCI bus, none usable", facts.on_bus);
  }
  finding.fact += facts.driver.empty() ? "; no kernel driver" : "; driver " + facts.driver;
  if (facts.cuda_version > 0) {
    finding.fact += fmt::format(", CUDA up to {}.{}", facts.cuda_version / 1000,
                                facts.cuda_version % 1000 / 10);
  }
  if (!facts.backend.empty()) {
    finding.meaning = fmt::format("Operations run on the first: {}.", facts.backend);
    return {finding};
  }
  finding.verdict = Verdict::note;
  finding.meaning = fmt::format("Everything is computed on the CPU: {}.", facts.backend_refusal);
  if (!facts.library_error.empty()) {
    finding.meaning +=
        fmt::format(" The driver's library cannot be used: {}.", facts.library_error);
    finding.change = "Install the NVIDIA driver; in a container: docker run --gpus all.";
  }
  return {finding};
}

std::vector<Finding> check_direct_reads(const DirectReadFacts& facts) {
  Finding finding{"accelerators", "GPUDirect Storage to " + facts.folder};
  const bool works = facts.refusal.empty();
  finding.values = {{"cufile", facts.has_cufile},
                    {"works", works},
                    {"direct_rate", facts.rates.direct},
                    {"through_host_rate", facts.rates.through_host}};
  if (works) {
    finding.fact = fmt::format("works: {}, {}", facts.description, describe(facts.rates));
    finding.meaning =
        "With headrace.gpudirect and without headrace.verify_reads, reads for the GPU can pass "
        "host memory by.";
    return {finding};
  }
  finding.verdict = facts.has_gpu ? Verdict::note : Verdict::ok;
  finding.fact = "not possible here: " + facts.refusal;
  finding.meaning = "What goes from nvme to a GPU passes host memory.";
  return {finding};
}

std::vector<Finding> check_cudnn(const CudnnFacts& facts) {
  Finding finding{"accelerators", "cuDNN"};
  const bool works = facts.refusal.empty();
  finding.values = {{"version", facts.version}, {"works", works}};
  finding.fact = works ? facts.version : "not usable: " + facts.refusal;
  finding.meaning = works ? "With headrace.attention it can compute attention on a GPU, where a "
                            "trial at the start of a run proves it."
                          : "Attention on a GPU is computed by our own kernels.";
  return {finding};
}

std::vector<Finding> check_mpi(const MpiFacts& facts) {
  Finding finding{"several ranks", "Open MPI"};
  finding.values = {{"version", facts.version}, {"mpirun", facts.has_mpirun}};
  if (facts.version.empty()) {
    finding.fact = "not found";
    finding.meaning = "A run on one rank does not need it.";
    finding.change = "For several ranks: apt-get install openmpi-bin libopenmpi3.";
    return {finding};
  }
  finding.fact = facts.version + (facts.has_mpirun ? "" : "; mpirun is not in PATH");
  finding.meaning = "A run on one rank does not need it.";
  if (!facts.has_mpirun) {
    finding.verdict = Verdict::note;
    finding.change = "For several ranks: apt-get install openmpi-bin.";
  }
  return {finding};
}

std::vector<Finding> examine_machine(const std::vector<std::string>& folders) {
  const tiers::Topology topology = tiers::detect_topology();
  std::vector<Finding> findings = check_processor(topology, detect_instruction_sets());
  append(check_memory(), findings);
  append(check_io_uring(aio::try_uring()), findings);
  std::vector<std::string> usable;
  for (const std::string& folder : folders) {
    const aio::DriveFacts facts = aio::examine_drive(folder);
    if (facts.absent.empty() && facts.not_writable.empty()) {
      usable.push_back(folder);
    }
    const auto profile = stored_profile(facts);
    append(check_drive(facts, profile ? &*profile : nullptr, topology.numa_nodes.size()), findings);
  }
  const device::GpuSearch search = device::find_gpu();
  append(check_gpus(detect_gpus(search)), findings);
  append(check_cudnn(detect_cudnn()), findings);
  for (const std::string& folder : usable) {
    append(check_direct_reads(try_direct_reads(search, folder)), findings);
  }
  append(check_mpi(detect_mpi()), findings);
  return findings;
}

}  // namespace headrace::engine
