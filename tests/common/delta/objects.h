// Whole objects for tests: states of all slices of a layout, the object between two of them, and
// applying one.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "common/delta/objects/object.h"
#include "common/delta/objects/object_part.h"
#include "common/model/layout.h"
#include "tests/common/delta/encode_block.h"
#include "tests/common/delta/samples.h"

namespace dws::samples {

// Canonical bytes of every slice of a rank.
using State = std::vector<Bytes>;

// Slice i has the bytes of Random(seed + i).
State RandomState(const RankLayout& layout, uint64_t seed);

// The encoded blocks of every slice, and its digests.
struct Encoding {
  std::vector<std::vector<EncodedBlock>> blocks;
  std::vector<Digest> before;
  std::vector<Digest> after;
  std::vector<std::optional<ClassTable>> classes;  // of every slice; empty: none has one
};
Encoding EncodeState(const RankLayout& layout, const State& before, const State& after,
                     const EncodeOptions& options);

// Makes every block with changes class-split where `table` fits its dtype, even if it grows.
void SplitEveryBlock(const RankLayout& layout, const State& before, const State& after,
                     const ClassTable& table, Encoding& encoding);

// The class table of every slice, from the changes between two states; nullopt for a slice without.
using ClassTables = std::vector<std::optional<ClassTable>>;
ClassTables ChooseTables(const RankLayout& layout, const State& before, const State& after);

// Makes those blocks class-split that become smaller, as a sender does for slow links.
void SplitWhereSmaller(const RankLayout& layout, const State& before, const State& after,
                       const ClassTables& tables, Encoding& encoding);

// Version `base` + 1 over `base`, made for `layout`; state token of the digests after.
DeltaManifest Identity(const RankLayout& layout, const Encoding& encoding, uint64_t base);

Bytes SealObject(const RankLayout& layout, const Encoding& encoding, uint64_t base);
Bytes SealObject(const Encoding& encoding, DeltaManifest identity);

// The part of `object` with the frames of `slices`; the object itself if it is damaged.
Bytes PartOf(const Bytes& object, const RankLayout& layout, const SliceSelection& slices);

// Checks everything that can be checked and brings `state` to the object's version. Digests before
// are compared when `compare_base`. DATA_LOSS also when a digest differs.
Status ApplyObject(ByteSpan object, const RankLayout& layout, bool compare_base, State& state);

// An object of these parts with right checksums, whatever the parts hold.
Bytes Assemble(const DeltaManifest& manifest, ByteSpan frames, uint32_t format_version);

// Puts the right checksum into the header at the front of `object`.
void FixHeaderChecksum(Bytes& object);

}  // namespace dws::samples
