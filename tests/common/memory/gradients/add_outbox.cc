// What the senders of a host do with the outbox of one rank, in one process: takes pieces as they
// come, adds each to its owner's accumulators, and frees it. For python_outbox_test.py, whose
// descriptors this program inherits.
//
//   add_outbox REGION_FD REGION_BYTES WAKE_FD PIECES exact|fp32 ELEMENTS...
//
// ELEMENTS: of each unit's shard, for one owner after the other ("4,0,7" is three units). After
// PIECES pieces it writes the gradients of all owners and units to stdout, and the sums of squares
// to stderr. 1: a piece or a slot was refused, the reason is on stderr.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/memory/gradients/accumulators.h"
#include "common/memory/gradients/outbox.h"

namespace dws {
namespace {

constexpr std::chrono::seconds kWait{60};

struct Arguments {
  int region_fd;
  uint64_t region_bytes;
  int wake_fd;
  uint64_t pieces;
  bool exact;
  std::vector<std::vector<GradientUnit>> owners;
};

Arguments Parse(const std::vector<std::string>& words) {
  Arguments arguments = {.region_fd = std::stoi(words[1]),
                         .region_bytes = std::stoull(words[2]),
                         .wake_fd = std::stoi(words[3]),
                         .pieces = std::stoull(words[4]),
                         .exact = words[5] == "exact",
                         .owners = {}};
  for (size_t owner = 6; owner < words.size(); ++owner) {
    std::vector<GradientUnit>& units = arguments.owners.emplace_back();
    std::istringstream sizes(words[owner]);
    for (std::string size; std::getline(sizes, size, ',');) {
      units.push_back(
          {.name = fmt::format("unit {}", units.size()), .elements = std::stoull(size)});
    }
  }
  return arguments;
}

Status AddPieces(const Arguments& arguments, OutboxReader& outbox,
                 std::vector<Accumulators>& owners, ThreadPool& pool) {
  uint64_t left = arguments.pieces;
  while (left > 0) {
    DWS_ASSIGN_OR_RETURN(const std::vector<OutboxPiece> pieces, outbox.Take());
    for (const OutboxPiece& piece : pieces) {
      DWS_RETURN_IF_ERROR(owners[piece.owner].Add(
          {.unit = piece.unit, .blocks = {}, .dtype = piece.dtype, .bytes = outbox.Bytes(piece)},
          pool));
      outbox.Free(piece);
      --left;
    }
    if (pieces.empty()) {
      DWS_ASSIGN_OR_RETURN(const bool woken, outbox.Wait(kWait));
      if (!woken) return DeadlineExceededError("{} pieces are missing", left);
    }
  }
  return OkStatus();
}

Status WriteSums(std::vector<Accumulators>& owners, size_t units, ThreadPool& pool) {
  for (Accumulators& owner : owners) {
    DWS_ASSIGN_OR_RETURN(const GradientSum sum, owner.Seal(pool));
    fmt::print(stderr, "{} {} {}\n", sum.of_squares, sum.finite, sum.exact);
    for (size_t unit = 0; unit < units; ++unit) {
      const ByteSpan gradient = owner.Gradient(unit);
      std::fwrite(gradient.data(), 1, gradient.size(), stdout);
    }
  }
  return OkStatus();
}

Status Run(const Arguments& arguments) {
  DWS_ASSIGN_OR_RETURN(
      HostRegion region,
      HostRegion::Map(UniqueFd(arguments.region_fd), arguments.region_bytes, Access::kReadWrite));
  const size_t units = arguments.owners.front().size();
  DWS_ASSIGN_OR_RETURN(
      OutboxReader outbox,
      OutboxReader::Open(std::move(region), UniqueFd(arguments.wake_fd),
                         {.unit_count = static_cast<uint32_t>(units),
                          .owner_count = static_cast<uint32_t>(arguments.owners.size())}));
  ThreadPool pool(1);
  std::vector<Accumulators> owners;
  for (const std::vector<GradientUnit>& shard : arguments.owners) {
    DWS_ASSIGN_OR_RETURN(
        Accumulators sums,
        Accumulators::Create(shard, {.exact = arguments.exact, .bytes_max = uint64_t{1} << 30}));
    owners.push_back(std::move(sums));
  }
  DWS_RETURN_IF_ERROR(AddPieces(arguments, outbox, owners, pool));
  return WriteSums(owners, units, pool);
}

}  // namespace
}  // namespace dws

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv, argv + argc);
  if (words.size() < 7) return 2;
  const dws::Status status = dws::Run(dws::Parse(words));
  if (status.ok()) return 0;
  fmt::print(stderr, "{}\n", dws::ToString(status));
  return 1;
}
