#include "tools/checkpoint/apply.h"

#include <set>
#include <vector>

#include "common/base/check.h"
#include "common/formats/checkpoint/settled.h"
#include "tools/checkpoint/output.h"
#include "tools/checkpoint/parts/chain_check.h"
#include "tools/checkpoint/parts/output_check.h"

namespace dws::checkpoint {

Result<AppliedVersion> ApplyDeltas(FileSystem& files, const ApplyRequest& request, ThreadPool& pool,
                                   const Progress& progress) {
  DWS_CHECK(!request.deltas.empty());
  DWS_RETURN_IF_ERROR(CheckOutput(request.out));
  DWS_RETURN_IF_ERROR(CheckSettled(request.base));
  DWS_ASSIGN_OR_RETURN(const Checkpoint base, Checkpoint::Open(request.base));
  std::vector<std::string> read = PathsOf(base);
  read.insert(read.end(), request.deltas.begin(), request.deltas.end());
  DWS_RETURN_IF_ERROR(CheckApart(request.out, read));
  DWS_ASSIGN_OR_RETURN(const RankLayout layout, LayoutOf(base));
  DWS_ASSIGN_OR_RETURN(const std::vector<DeltaFile> chain, OpenChain(request.deltas, layout));
  const Walk walk{.layout = layout, .pool = pool, .progress = progress};
  ChainSource source(layout, BytesOf(base), chain, pool.worker_count());
  DWS_ASSIGN_OR_RETURN(const CheckedChain checked, CheckChain(walk, chain, source));

  std::set<RankSlice> changed;
  for (const DeltaFile& delta : chain) {
    for (const SliceDelta& slice : delta.manifest().slices) changed.insert(slice.slice);
  }
  AppliedVersion made{.version = chain.back().manifest().version.value(),
                      .changed_tensors = checked.already_applied ? 0 : changed.size(),
                      .bytes = base.tensor_bytes()};
  const OutputPlan plan{
      .base_path = request.base, .base = base, .after = checked.after, .out = request.out};
  if (checked.already_applied) {
    // The deltas must not be applied a second time, so copy the base with an empty chain.
    ChainSource unchanged(layout, BytesOf(base), {}, pool.worker_count());
    DWS_RETURN_IF_ERROR(WriteOutput(walk, files, plan, unchanged));
  } else {
    DWS_RETURN_IF_ERROR(WriteOutput(walk, files, plan, source));
  }
  return made;
}

}  // namespace dws::checkpoint
