// The header of a safetensors file: u64 size of the JSON, the JSON, and then the tensors' bytes
// without a gap. Pure: parses and makes bytes, opens nothing.
//
// Parsing accepts what the official library accepts, except for forms that only attackers use:
// duplicate keys, unknown members, numbers with a decimal point. No value is used before it has
// been checked.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/formats/safetensors/file_dtype.h"

namespace dws::safetensors {

using Metadata = std::map<std::string, std::string>;

// One tensor as the header of a file describes it.
struct HeaderTensor {
  std::string name;
  FileDType dtype = FileDType::kU8;
  std::vector<uint64_t> shape;
  uint64_t begin = 0;  // offset of its bytes from content_offset
  uint64_t end = 0;

  uint64_t size_bytes() const { return end - begin; }
  friend bool operator==(const HeaderTensor&, const HeaderTensor&) = default;
};

// The parsed header of a file.
struct Header {
  Metadata metadata;
  std::vector<HeaderTensor> tensors;  // in the order of the file
  uint64_t content_offset = 8;        // of the first tensor's bytes, from the start of the file

  // The bytes of one of `tensors` in `file`, which has this header.
  ByteSpan BytesOf(const HeaderTensor& tensor, ByteSpan file) const {
    return file.subspan(content_offset + tensor.begin, tensor.size_bytes());
  }
};

// Parses the header of `file`, which holds the whole file; `what` names it in messages. DATA_LOSS:
// it breaks the format; the message says where. RESOURCE_EXHAUSTED: more than limits.h allows.
Result<Header> ParseHeader(ByteSpan file, const std::string& what);

// Reads a header in two steps, for a file of `file_bytes` that is not in memory.
//
// Step 1 returns the size of the header's JSON, from the first kHeaderLengthBytes of the file, or
// from all of a smaller file. RESOURCE_EXHAUSTED: above `header_bytes_max`.
inline constexpr uint64_t kHeaderLengthBytes = 8;
Result<uint64_t> HeaderLength(ByteSpan start, uint64_t file_bytes, uint64_t header_bytes_max,
                              const std::string& what);
// Parses that JSON. `check_tensor`: as in ClaimLimits.
Result<Header> ParseHeaderText(std::string_view text, uint64_t file_bytes,
                               const std::function<Status(const HeaderTensor&)>& check_tensor,
                               const std::string& what);

// The header of a new file, and its bytes. Tensors are in the official library's order: those with
// the greatest dtype first, then by name. The JSON is padded with spaces to 8 bytes.
struct NewHeader {
  Header header;
  std::vector<std::byte> bytes;  // the file up to its content
};

// `begin` and `end` of the tensors are ignored. INVALID_ARGUMENT: a name that is duplicate, not
// UTF-8 or "__metadata__", or a dtype and shape whose size is not a whole number of bytes.
// RESOURCE_EXHAUSTED: too many or too large for limits.h.
Result<NewHeader> MakeHeader(const Metadata& metadata, std::vector<HeaderTensor> tensors);

// A tensor for MakeFile. `bytes` refers to memory that the caller keeps.
struct TensorBytesView {
  std::string name;
  FileDType dtype = FileDType::kU8;
  std::vector<uint64_t> shape;
  ByteSpan bytes;
};
// Makes a whole file in memory, for small files and for files that are compressed as a whole.
// Errors as MakeHeader; INVALID_ARGUMENT also when bytes and shape disagree.
Result<std::vector<std::byte>> MakeFile(const Metadata& metadata,
                                        std::span<const TensorBytesView> tensors);

}  // namespace dws::safetensors
