#pragma once

#include "scheduler/schedule.h"

namespace headrace::scheduler {

/// The schedule with direct reads: where a value is read into the host, copied to the device and
/// dropped from the host, which nothing else has used, it is read straight to the device instead,
/// which takes no host memory but the device's from the read's begin on. As many of them as the
/// simulation finds no slower: those whose slot of the device need not be waited for, then more by
/// halving, those with the shortest wait first. Residencies at the end are the same. With no direct
/// reads in the rates: the schedule itself.
Schedule add_direct_reads(const CompileInput& input, Schedule schedule);

}  // namespace headrace::scheduler
