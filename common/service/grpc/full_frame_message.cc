// The data is passed over until the end of the message is known, and read afterwards from where it
// began: both without a copy.
#include "common/service/grpc/full_frame_message.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <string>

#include "common/base/check.h"
#include "common/model/limits.h"
#include "common/service/grpc/data_message.h"

namespace dws {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr uint32_t TagOf(int field, WireFormatLite::WireType type) {
  return WireFormatLite::MakeTag(field, type);
}
constexpr uint32_t kSliceTag =
    TagOf(v1::FullFrame::kRankSliceFieldNumber, WireFormatLite::WIRETYPE_VARINT);
constexpr uint32_t kEntryTag =
    TagOf(v1::FullFrame::kEntryFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
constexpr uint32_t kDataTag =
    TagOf(v1::FullFrame::kDataFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
// The limit of a frame's entry, which is always much smaller.
constexpr uint32_t kEntryBytesMax = 1024;

// Reads one field other than the data.
bool ReadField(uint32_t tag, CodedInputStream& in, v1::FullFrame& head) {
  uint32_t value = 0;
  switch (tag) {
    case kSliceTag:
      if (!in.ReadVarint32(&value)) return false;
      head.set_rank_slice(value);
      return true;
    case kEntryTag: {
      std::string entry;
      return in.ReadVarint32(&value) && value <= kEntryBytesMax &&
             in.ReadString(&entry, static_cast<int>(value)) &&
             head.mutable_entry()->MergeFromString(entry);
    }
    default:
      return WireFormatLite::SkipField(&in, tag);
  }
}

}  // namespace

grpc::ByteBuffer FullFrameMessage(const v1::FullFrame& head, const grpc::Slice& data) {
  DWS_CHECK(head.data().empty());
  return DataMessage(head, v1::FullFrame::kDataFieldNumber, {&data, 1});
}

Result<v1::FullFrame> FullFrameReader::Head() {
  v1::FullFrame head;
  grpc::ProtoBufferReader whole(&message_);
  CodedInputStream in(&whole);
  int data_offset = 0;
  int data_bytes = 0;
  bool good = true;
  while (const uint32_t tag = good ? in.ReadTag() : 0) {
    if (tag == kDataTag) {
      good = in.ReadVarintSizeAsInt(&data_bytes);
      data_offset = in.CurrentPosition();
      good = good && in.Skip(data_bytes);
    } else {
      good = ReadField(tag, in, head);
    }
  }
  good = good && in.ConsumedEntireMessage();
  if (good && data_bytes > 0) good = data_.emplace(&message_).Skip(data_offset);
  if (!good) return DataLossError("a message of full tensors cannot be read");
  data_bytes_ = static_cast<uint64_t>(data_bytes);
  return head;
}

Status FullFrameReader::ReadData(MutableByteSpan to) {
  DWS_CHECK(to.size() <= data_bytes_ - read_bytes_);
  if (to.empty()) return OkStatus();
  read_bytes_ += to.size();
  CodedInputStream in(&*data_);
  if (in.ReadRaw(to.data(), static_cast<int>(to.size()))) return OkStatus();
  return DataLossError("a message of full tensors is shorter than its {} bytes of data",
                       data_bytes_);
}

Result<std::vector<BlockRange>> ParseBlockRanges(
    const google::protobuf::RepeatedPtrField<v1::BlockRange>& messages, const RankLayout& layout) {
  std::vector<BlockRange> ranges;
  for (const v1::BlockRange& message : messages) {
    const BlockRange range{.slice = RankSlice(message.rank_slice()),
                           .first_block = message.first_block(),
                           .block_count = message.block_count()};
    const bool follows =
        ranges.empty() || ranges.back().slice < range.slice ||
        (ranges.back().slice == range.slice &&
         ranges.back().first_block + ranges.back().block_count <= range.first_block);
    if (!IsInside(layout, range) || !follows) {
      return InvalidArgumentError(
          "blocks {} + {} of rank slice {} are out of order or not in the layout",
          range.first_block, range.block_count, range.slice.value());
    }
    ranges.push_back(range);
  }
  return ranges;
}

}  // namespace dws
