// The layouts of the objects and manifests in fuzz targets and seeds.
#pragma once

#include "common/base/check.h"
#include "common/model/layout.h"

namespace dws::fuzz {

// Two slices of one tensor, one with two blocks, one of one element, one of none.
inline RankLayout ObjectLayout() {
  Result<RankLayout> layout = RankLayout::Create(
      {{.tensor = {.name = "a", .dtype = DType::kBF16, .shape = {5, 300}, .cuts = {{0, {2}}}},
        .cells = {{0, 2}}},
       {.tensor = {.name = "b", .dtype = DType::kU8, .shape = {70'003}}},
       {.tensor = {.name = "c", .dtype = DType::kF32, .shape = {}}},
       {.tensor = {.name = "d", .dtype = DType::kF64, .shape = {0, 4}}}});
  DWS_CHECK(layout.ok());
  return *std::move(layout);
}

// Slices of several blocks, of one and of none.
inline RankLayout ManifestLayout() {
  Result<RankLayout> layout = RankLayout::Create(
      {{.tensor =
            {.name = "a", .dtype = DType::kBF16, .shape = {7, 100'000}, .cuts = {{0, {2, 6}}}},
        .cells = {{0, 3}}},
       {.tensor = {.name = "b", .dtype = DType::kF32, .shape = {3}}},
       {.tensor = {.name = "c", .dtype = DType::kF32, .shape = {0}}}});
  DWS_CHECK(layout.ok());
  return *std::move(layout);
}

}  // namespace dws::fuzz
