// Third phase of a split: the plan becomes graphs and modules.
#pragma once

#include <vector>

#include "split/plan.h"

namespace fxpress::split {

struct WrittenSplit {
  Ref result;              // the module that calls the partitions' modules
  std::vector<Ref> stale;  // GraphModules below one of these that are still to be recompiled
};

// Makes the objects that the plan describes. No code is generated yet.
WrittenSplit write_split(const SplitPlan& plan, const SplitOptions& options);

}  // namespace fxpress::split
