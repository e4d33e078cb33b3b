// slime's first format (v0.3.0), read for migration: a version folder of "flushes" of changed
// elements.
//
//   weight_vNNNNNN/rank0000_flush000000.safetensors ... and an empty file DONE when all are there
//   __positions__  U8: of each parameter its changed elements' numbers, from pos_start to pos_end
//   __values__     of the parameters' dtype: their new values, elements val_start to val_end
//   metadata       encoding, params: JSON [{name, dtype, shape, pos_start, pos_end, pos_width,
//                  val_start, val_end}], and prev_version and current_version
//
//   indices      int32 numbers
//   deltas       u16 or u32 (pos_width) gaps: number[i] = number[i-1] + gap[i] + 1, number[-1] = -1
//   deltas_zstd  deltas, and the file as a whole is one zstd frame
//
// It has no checksums: what it says can be checked for being possible, not for being right.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/formats/safetensors/file_dtype.h"

namespace dws::slime {

enum class FlushEncoding : uint8_t { kIndices, kDeltas, kDeltasZstd };
std::optional<FlushEncoding> FlushEncodingNamed(std::string_view name);

// Changed elements of one tensor. The spans view into the file, or into Flush::content.
struct FlushParam {
  std::string name;
  safetensors::FileDType dtype = safetensors::FileDType::kBF16;
  std::vector<uint64_t> shape;
  uint32_t position_bytes = 4;  // of a number: 2 or 4
  ByteSpan positions;
  ByteSpan values;
};

struct Flush {
  bool gaps = false;  // positions are gaps
  std::vector<FlushParam> params;
  std::vector<std::byte> content;  // the file decompressed, of deltas_zstd
};

// The flushes of a version folder, as paths, by rank and number. UNAVAILABLE: DONE is not there
// yet.
Result<std::vector<std::string>> ListFlushes(FileSystem& files, const std::string& version_folder);

// One file. `encoding` is for files whose metadata does not say it, and must be what those say that
// do. DATA_LOSS: damaged, or parameters that reach outside positions or values. RESOURCE_EXHAUSTED:
// more than limits.h allows. `file` must outlive the result.
Result<Flush> ParseFlush(ByteSpan file, std::optional<FlushEncoding> encoding,
                         const std::string& what);

// Writes the new values into a tensor's bytes. DATA_LOSS: an element outside of it, or another size
// than its shape's; nothing has been written then.
Status ApplyFlushParam(const Flush& flush, const FlushParam& param, MutableByteSpan tensor);

}  // namespace dws::slime
