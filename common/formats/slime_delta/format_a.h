// slime's first format (v0.3.0), read only for migration: a version folder of "flushes" of changed
// elements.
//
//   weight_vNNNNNN/rank0000_flush000000.safetensors ... and an empty file DONE when all exist
//   __positions__  U8: for each parameter the numbers of its changed elements, pos_start to pos_end
//   __values__     of the parameters' dtype: their new values, elements val_start to val_end
//   metadata       encoding, params: JSON [{name, dtype, shape, pos_start, pos_end, pos_width,
//                  val_start, val_end}], and prev_version and current_version
//
//   indices      int32 numbers
//   deltas       u16 or u32 (pos_width) gaps: number[i] = number[i-1] + gap[i] + 1, number[-1] = -1
//   deltas_zstd  deltas, and the file as a whole is one zstd frame
//
// The format has no checksums: a reader can check that the contents are possible, but not that they
// are right.
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

// The changed elements of one tensor. The spans refer to the file, or to Flush::content.
struct FlushParam {
  std::string name;
  safetensors::FileDType dtype = safetensors::FileDType::kBF16;
  std::vector<uint64_t> shape;
  uint32_t position_bytes = 4;  // size of one number: 2 or 4
  ByteSpan positions;
  ByteSpan values;
};

struct Flush {
  bool gaps = false;  // positions are gaps
  std::vector<FlushParam> params;
  std::vector<std::byte> content;  // for deltas_zstd: the decompressed file
};

// The paths of the flushes of a version folder, by rank and number. UNAVAILABLE: DONE does not
// exist yet.
Result<std::vector<std::string>> ListFlushes(FileSystem& files, const std::string& version_folder);

// Parses one file. `encoding` is for files whose metadata does not state the encoding; if a file
// states one, it must be equal. DATA_LOSS: damaged, or parameters that reach outside positions or
// values. RESOURCE_EXHAUSTED: more than limits.h allows. `file` must outlive the result.
Result<Flush> ParseFlush(ByteSpan file, std::optional<FlushEncoding> encoding,
                         const std::string& what);

// Writes the new values into a tensor's bytes. DATA_LOSS: an element outside the tensor, or a size
// that does not match the shape; nothing has been written then.
Status ApplyFlushParam(const Flush& flush, const FlushParam& param, MutableByteSpan tensor);

}  // namespace dws::slime
