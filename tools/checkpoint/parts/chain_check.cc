#include "tools/checkpoint/parts/chain_check.h"

#include <string>
#include <utility>

namespace dws::checkpoint {
namespace {

// The digests of slices, and by how much each delta changes them.
struct ChainDigests {
  std::vector<Digest> base;                      // by rank slice
  std::vector<std::vector<Digest>> differences;  // by delta, by rank slice
  Status decoding;                               // the first error; expected with a wrong base
};

// Reads all slices once, through `source`. Errors: of the progress.
Result<ChainDigests> ReadDigests(const Walk& walk, ChainSource& source) {
  const size_t links = source.link_count();
  struct BlockDigests {
    Digest base;
    std::vector<Digest> differences;
    Status decoding;
  };
  std::vector<BlockDigests> results(kWindowBlocksMax);
  for (BlockDigests& result : results) result.differences.resize(links);
  ChainDigests digests{
      .base = std::vector<Digest>(walk.layout.slice_count()),
      .differences = std::vector(links, std::vector<Digest>(walk.layout.slice_count())),
      .decoding = OkStatus()};
  const auto work = [&](const WalkedBlock& block, size_t worker) {
    BlockDigests& result = results[block.index];
    const RankLayout::SliceEntry& slice = walk.layout.slice(block.slice);
    result.base =
        DigestBytes(source.Before(block.slice, block.block), slice.BlockFirstWord(block.block));
    result.decoding = source.Follow(block.slice, block.block, worker, result.differences).status();
    return OkStatus();
  };
  const auto deliver = [&](std::span<const WalkedBlock> window) {
    for (const WalkedBlock& block : window) {
      const BlockDigests& result = results[block.index];
      const uint32_t slice = block.slice.value();
      digests.base[slice] += result.base;
      if (!result.decoding.ok()) {
        if (digests.decoding.ok()) digests.decoding = result.decoding;
        continue;
      }
      for (size_t i = 0; i < links; ++i) {
        digests.differences[i][slice] += result.differences[i];
      }
    }
    return OkStatus();
  };
  DWS_RETURN_IF_ERROR(WalkBlocks(walk, "checking weights", AllSlices(walk.layout), work, deliver));
  return digests;
}

// The names of tensors for which `found` differs from the digest that `delta` states.
std::vector<std::string> Differing(const RankLayout& layout, const DeltaManifest& delta,
                                   const std::vector<Digest>& found, Digest SliceDelta::*wanted) {
  std::vector<std::string> names;
  for (const SliceDelta& slice : delta.slices) {
    if (found[slice.slice.value()] == slice.*wanted) continue;
    names.push_back(layout.tensor(slice.slice).name);
  }
  return names;
}

// Returns whether `found` are the weights after the chain: each changed slice has the digest that
// the last delta that changes it states, and all slices together have the last delta's state token.
bool IsResult(std::span<const DeltaFile> chain, const std::vector<Digest>& found) {
  if (StateToken(found) != chain.back().manifest().state_token) return false;
  std::vector<bool> seen(found.size());
  for (size_t i = chain.size(); i-- > 0;) {
    for (const SliceDelta& slice : chain[i].manifest().slices) {
      const uint32_t number = slice.slice.value();
      if (!seen[number] && found[number] != slice.after) return false;
      seen[number] = true;
    }
  }
  return true;
}

}  // namespace

Result<CheckedChain> CheckChain(const Walk& walk, std::span<const DeltaFile> chain,
                                ChainSource& source) {
  DWS_ASSIGN_OR_RETURN(const ChainDigests digests, ReadDigests(walk, source));
  CheckedChain checked{.after = digests.base};
  if (IsResult(chain, digests.base)) {
    checked.already_applied = true;
    return checked;
  }
  const DeltaManifest& first = chain.front().manifest();
  const std::vector<std::string> other =
      Differing(walk.layout, first, digests.base, &SliceDelta::before);
  if (!other.empty()) {
    return FailedPreconditionError(
        "{} changes version {}, but the checkpoint is another version: of the {} tensors that the "
        "delta changes, {} differ from that version: {}",
        chain.front().path(), first.base_version.value(), first.slices.size(), other.size(),
        NameList(other));
  }
  if (!digests.decoding.ok()) return digests.decoding;
  for (size_t i = 0; i < chain.size(); ++i) {
    const DeltaManifest& manifest = chain[i].manifest();
    const std::vector<std::string> broken =
        Differing(walk.layout, manifest, checked.after, &SliceDelta::before);
    if (!broken.empty()) {
      return FailedPreconditionError("{} does not follow {}: it expects other weights of {}",
                                     chain[i].path(), chain[i - 1].path(), NameList(broken));
    }
    for (size_t s = 0; s < checked.after.size(); ++s) {
      checked.after[s] += digests.differences[i][s];
    }
    const std::vector<std::string> wrong =
        Differing(walk.layout, manifest, checked.after, &SliceDelta::after);
    if (!wrong.empty()) {
      return DataLossError("{} leads to other weights than its manifest says: {}", chain[i].path(),
                           NameList(wrong));
    }
    if (StateToken(checked.after) != manifest.state_token) {
      return FailedPreconditionError(
          "{} changes version {}, but the checkpoint is another version: the tensors that the "
          "delta changes are those of that version, others are not",
          chain[i].path(), manifest.base_version.value());
    }
  }
  return checked;
}

}  // namespace dws::checkpoint
