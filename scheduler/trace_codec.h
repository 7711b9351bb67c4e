#pragma once

#include "proto/trace.pb.h"
#include "scheduler/saved_trace.h"

namespace headrace::scheduler {

proto::TraceRecord to_record(const SavedTrace& trace);

/// The reverse. Throws InputError where a value is unknown or out of range.
SavedTrace from_record(const proto::TraceRecord& record);

}  // namespace headrace::scheduler
