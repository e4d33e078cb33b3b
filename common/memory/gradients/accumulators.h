// The sums of one rank's gradients over a minibatch, in shared memory that the rank maps: the
// senders of all ranks bring pieces, and the rank's optimizer reads the sum. The same class adds up
// the pieces that a host sends on as one. It has arithmetic and memory only: which piece is due,
// and when a minibatch ends, is decided elsewhere.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/base/unique_fd.h"
#include "common/memory/gradients/add_kernels.h"
#include "common/memory/host/host_region.h"
#include "common/model/tensor_spec.h"
#include "common/model/unit_index.h"

namespace dws {

// What a trainer gathers and reduces at once, such as a layer: the rank's shard of it.
struct GradientUnit {
  std::string name;
  uint64_t elements = 0;  // may be 0

  friend bool operator==(const GradientUnit&, const GradientUnit&) = default;
};

struct AccumulatorOptions {
  // FP64 sums, and the proof that no order of the pieces could show. FP32 sums otherwise.
  bool exact = false;
  // How much memory the sums may take: the cap, or less if the host has less.
  uint64_t bytes_max = 0;
};

// Consecutive blocks, of limits::kBlockElements elements each; the last one of a unit may be
// shorter.
struct GradientBlocks {
  uint64_t first = 0;
  uint64_t count = 0;
};

// Gradients of one unit from one rank, or the sum of a host's. The bytes may change while they are
// added: then sums are wrong, nothing else.
struct GradientPiece {
  size_t unit = 0;
  std::optional<GradientBlocks> blocks;  // nullopt: the whole unit
  DType dtype = DType::kBF16;            // or kF32; with AccumulatorOptions::exact also kF64
  ByteSpan bytes;
};

// What a rank and the decision about a minibatch need to know of the sums.
struct GradientSum {
  // The squares of all FP32 gradients. Each block is summed as AddKernels says, and blocks are
  // added in order: the result does not depend on the number of threads. A NaN is the quiet one.
  double of_squares = 0;
  // No gradient is infinite or a NaN.
  bool finite = true;
  // With AccumulatorOptions::exact: no addition was rounded, so FP64 sums are the true ones, and
  // every order of the pieces in which that is so gives the same bits. False without it.
  bool exact = false;
};

// Lifecycle: created; pieces are added, then the sums are sealed, then let go for the next
// minibatch, any number of times. LetGo without Seal abandons a minibatch. Nothing is ever cleared:
// the first piece of each block is stored.
//
// Memory: 4 bytes an element, or 8 if exact; each unit is filled up to 16 elements. After Seal the
// gradient of a unit is FP32 elements at OffsetBytes(unit), in both cases. The rank may map the
// memory for writing, since it may clip gradients in place; what it writes changes its own
// gradients only.
//
// Threads: one at a time. Calls share their work among the pool's threads.
class Accumulators {
 public:
  // INVALID_ARGUMENT: more units than limits::kTrainUnitsMax, or more elements than a region can
  // hold.
  // RESOURCE_EXHAUSTED: `bytes_max` is too small (nothing was allocated), or the system has no
  // memory or descriptors left.
  static Result<Accumulators> Create(std::vector<GradientUnit> units, AccumulatorOptions options);
  // In memory of the rank, which outlives it and begins at a cache line. INVALID_ARGUMENT: as
  // Create, or the memory has another size than the sums.
  static Result<Accumulators> Over(std::vector<GradientUnit> units, bool exact,
                                   MutableByteSpan memory);

  // OK if Add would take the piece; its bytes aside, only their number counts. Threads: any.
  // INVALID_ARGUMENT as Add.
  Status CheckPiece(size_t unit, DType dtype, uint64_t size_bytes) const;

  // Adds a piece. INVALID_ARGUMENT: there is no such unit or block, or bytes or element type are
  // not those of the unit's blocks. FAILED_PRECONDITION: the sums are sealed. After an error
  // nothing has changed.
  Status Add(const GradientPiece& piece, ThreadPool& pool);

  // Ends the minibatch: writes the gradients, with zeros where no piece was added.
  // FAILED_PRECONDITION: they are sealed already.
  Result<GradientSum> Seal(ThreadPool& pool);

  // Forgets all sums: the next piece of each block is stored. The rank no longer reads the
  // gradients.
  void LetGo();

  bool sealed() const { return sealed_; }
  // The FP32 gradient of a unit, valid until LetGo. Only after Seal (CHECK).
  ByteSpan Gradient(size_t unit) const;

  // What a host sends on: the sums of a unit to which whole pieces were added, of sum_dtype().
  // Only before Seal (CHECK).
  ByteSpan Sums(size_t unit) const;
  DType sum_dtype() const { return exact() ? DType::kF64 : DType::kF32; }
  // No addition since LetGo was rounded; false without AccumulatorOptions::exact.
  bool all_exact() const { return exact() && !inexact_; }

  // For the rank, which maps all of the memory. Only of Create.
  const UniqueFd& descriptor() const { return owned_.fd; }
  uint64_t size_bytes() const { return memory_.size(); }
  // The offset of a unit's gradient in the memory.
  uint64_t OffsetBytes(size_t unit) const { return units_[unit].first_element * sizeof(float); }

 private:
  struct Unit {
    GradientUnit declared;
    uint64_t first_element = 0;  // in the memory
    size_t first_block = 0;      // in blocks_
    size_t block_count = 0;
  };
  struct Block {
    uint64_t first_element = 0;  // in the memory
    uint64_t elements = 0;
    double squares = 0;
    bool stored = false;  // a piece of this minibatch is there
  };

  Accumulators() = default;

  bool exact() const { return element_bytes_ == sizeof(double); }

  // All but the memory, which takes `bytes`.
  static Result<Accumulators> Make(std::vector<GradientUnit> units, bool exact, uint64_t& bytes);
  Status Check(const GradientPiece& piece) const;
  Status CheckSize(const GradientPiece& piece, uint64_t size_bytes) const;
  std::byte* At(const Block& block) const {
    return memory_.data() + block.first_element * element_bytes_;
  }
  void RoundAll(ThreadPool& pool);
  double SquaresInOrder() const;

  std::vector<Unit> units_;
  std::vector<Block> blocks_;
  uint64_t element_bytes_ = 0;
  const AddKernels* kernels_ = nullptr;
  CreatedRegion owned_;
  MutableByteSpan memory_;
  bool sealed_ = false;
  bool inexact_ = false;  // some addition was rounded
};

}  // namespace dws
