// Which versions have been applied to a local checkpoint: by this the folder of another run of the
// trainer is recognised, which counts from 1 as well. Pure.
//
// One version's identity says little: two versions without changes are equal, whatever came before
// them. So identities are chained, from the full checkpoint or the base that the versions began
// with: chain(n) = xxh3-128(chain(n-1) "\n" identity(n)), chain(base) = "".
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "common/formats/mapped_file.h"

namespace dws::slime {

struct AppliedVersion {
  std::string identity;            // VersionFolder::identity()
  std::optional<FileStamp> index;  // of its index's file when it was read; nullopt: not known

  friend bool operator==(const AppliedVersion&, const AppliedVersion&) = default;
};

struct Lineage {
  // What the chain began with: a full checkpoint, or 0, the base. nullopt: not known, as of a
  // checkpoint that another program, or a release before chains, has brought to its version.
  std::optional<uint64_t> since;
  std::string chain;   // of the local version; empty: nothing was applied
  std::string stream;  // where the writer is a dws-sender; empty: another, or not known
  std::map<uint64_t, AppliedVersion> applied;  // the newest limits::kSlimeAppliedMax since then
  // Why nothing but a full checkpoint may be applied: another run was seen. Empty: may be.
  std::string refused;
  // Why what is left in the folder has to prove whose it is. Empty: it need not.
  std::string doubted;
  // Of what was refused or doubted: when the newest version of the folder was written that is not
  // the one that was applied here. A full checkpoint before that may be the dead run's. nullopt:
  // not known.
  std::optional<int64_t> other_ns;

  friend bool operator==(const Lineage&, const Lineage&) = default;
};

// A version that is applied.
struct LineageStep {
  uint64_t version = 0;
  AppliedVersion applied;
  std::string stream;
  // Whether it is a full checkpoint. nullopt: a redo record of a release before chains, which does
  // not say it.
  std::optional<bool> full;
};
Lineage After(Lineage before, LineageStep step);

// Adds one version to a chain.
void ExtendChain(std::string& chain, const std::string& identity);

// "IDENTITY DEVICE INODE SIZE MODIFIED_NS CHANGED_NS", or the identity alone.
std::string AppliedText(const AppliedVersion& applied);
std::optional<AppliedVersion> ParseApplied(std::string_view text);

}  // namespace dws::slime
