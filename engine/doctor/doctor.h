#pragma once

#include <string>
#include <vector>

#include "aio/drive_facts.h"
#include "aio/uring_facts.h"
#include "engine/doctor/accelerators.h"
#include "engine/doctor/finding.h"
#include "proto/profile.pb.h"
#include "tiers/topology.h"

namespace headrace::engine {

/// What code with run-time dispatch uses on this machine.
struct InstructionSets {
  std::string optimizer;       ///< Highway's name of the best one: "AVX3_ZEN4"
  bool has_avx2 = false;       ///< or better
  bool bf16_products = false;  ///< bf16 matrix products have instructions of their own
};
InstructionSets detect_instruction_sets();

// Each judges some facts; those of /proc and /sys are read below `root`. Missing files are no
// failure: the finding says that the fact is unknown. Thread-safe.

std::vector<Finding> check_processor(const tiers::Topology& topology, const InstructionSets& sets,
                                     const std::string& root = "");
std::vector<Finding> check_memory(const std::string& root = "");
std::vector<Finding> check_io_uring(const aio::UringFacts& facts);
/// `profile`: what the probe has stored for this drive; null: nothing. `nodes`: of the machine.
std::vector<Finding> check_drive(const aio::DriveFacts& facts, const proto::StorageProfile* profile,
                                 size_t nodes);
std::vector<Finding> check_gpus(const GpuFacts& facts);
std::vector<Finding> check_direct_reads(const DirectReadFacts& facts);
std::vector<Finding> check_cudnn(const CudnnFacts& facts);
std::vector<Finding> check_mpi(const MpiFacts& facts);

/// Everything about this machine and the storage below the folders, for the page of
/// `headrace doctor`. Changes nothing; a test file in each folder is gone afterwards.
std::vector<Finding> examine_machine(const std::vector<std::string>& folders);

}  // namespace headrace::engine
