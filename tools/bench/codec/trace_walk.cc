// The trainer's memory is one region, into which each step is copied.
#include "tools/bench/codec/trace_walk.h"

#include <algorithm>
#include <filesystem>

#include "tools/bench/measure/trace.h"

namespace dws::bench {
namespace {

std::string StemOf(const std::string& file) { return std::filesystem::path(file).stem().string(); }

}  // namespace

Result<std::vector<TensorPair>> WalkTrace(const std::string& directory, DeltaProfile profile,
                                          ThreadPool& pool,
                                          const std::function<Status(SenderSide&)>& first,
                                          const std::function<Status(const TraceStep&)>& each) {
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> files, TraceFiles(directory));
  DWS_ASSIGN_OR_RETURN(std::vector<TensorPair> tensors, ReadFirstStep(files[0]));
  std::vector<TensorSpec> specs;
  for (const TensorPair& tensor : tensors) specs.push_back(tensor.spec);
  DWS_ASSIGN_OR_RETURN(const Placement placement, PlaceTensors(specs));
  DWS_ASSIGN_OR_RETURN(const auto sender, SenderSide::Create(placement));
  std::vector<std::byte> before;
  for (size_t f = 0; f < files.size(); ++f) {
    if (f > 0) DWS_RETURN_IF_ERROR(ReadNextStep(files[f], tensors));
    before.assign(sender->weights().begin(), sender->weights().end());
    for (size_t i = 0; i < specs.size(); ++i) {
      std::copy(tensors[i].after.begin(), tensors[i].after.end(),
                placement.Tensor(sender->weights(), i).begin());
    }
    sender->Capture(pool, profile);
    DWS_RETURN_IF_ERROR(f == 0 ? first(*sender)
                               : each({.from = StemOf(files[f - 1]),
                                       .to = StemOf(files[f]),
                                       .placement = placement,
                                       .before = before,
                                       .sender = *sender}));
  }
  return tensors;
}

}  // namespace dws::bench
