// How a unit (the tensors that a trainer computes with together, of which each rank owns a part) is
// put together from the layouts of its owners: which slices come from whom, and where each one
// goes. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "common/model/weight_version.h"
#include "common/spool/placed_memory.h"

namespace dws {

// A plain value.
struct UnitSpec {
  std::string name;                  // for messages
  std::vector<std::string> tensors;  // in the order of its buffer
};

// Immutable once made. Threads: safe to read from any.
class UnitPlan {
 public:
  // A whole tensor in the unit's buffer: its elements in row-major order.
  struct Tensor {
    std::string name;
    DType dtype = DType::kBF16;
    std::vector<uint64_t> shape;
    uint64_t first_byte = 0;
    uint64_t size_bytes = 0;
  };
  // What comes from one owner.
  struct Part {
    TrainerRank owner;
    std::vector<RankSlice> slices;            // of its layout, ascending
    std::vector<PlacedMemory::Place> places;  // as `slices`, in the unit's buffer
    uint64_t size_bytes = 0;
  };

  // `owners`: the layout of each trainer rank, by rank. They need not cut a tensor in the same
  // places. INVALID_ARGUMENT, naming unit and tensor: no rank has it, or a part of it; two ranks
  // own the same elements, or say different things of its type or shape; the unit names it twice;
  // a slice whose place has two levels of stride; a limit is exceeded.
  static Result<UnitPlan> Make(const UnitSpec& unit,
                               std::span<const std::shared_ptr<const RankLayout>> owners);

  // Each tensor begins at a multiple of limits::kUnitAlignment, and the buffer's size is one.
  const std::vector<Tensor>& tensors() const { return tensors_; }
  // By owner, ascending; owners that have nothing of the unit are left out.
  const std::vector<Part>& parts() const { return parts_; }
  uint64_t size_bytes() const { return size_bytes_; }

 private:
  class Maker;

  std::vector<Tensor> tensors_;
  std::vector<Part> parts_;
  uint64_t size_bytes_ = 0;
};

}  // namespace dws
