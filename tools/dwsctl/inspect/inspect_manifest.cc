#include "tools/dwsctl/inspect/inspect_manifest.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>

#include <limits>
#include <optional>
#include <string_view>

#include "proto/delta.pb.h"

namespace dws::dwsctl {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::io::CodedInputStream;

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

class ManifestWalk {
 public:
  ManifestWalk(ByteSpan manifest, const InspectLimits& limits, const InspectSink& sink)
      : stream_(reinterpret_cast<const uint8_t*>(manifest.data()),
                static_cast<int>(manifest.size())),
        limits_(limits),
        sink_(sink) {
    stream_.SetTotalBytesLimit(std::numeric_limits<int>::max());
  }

  uint64_t Run() {
    Message(*v1::DeltaManifest::descriptor(), "", std::nullopt);
    if (slices_ > limits_.slices) {
      Tell(OmissionItem{fmt::format("and {} more slices", slices_ - limits_.slices)});
    }
    return sound_bytes_;
  }

 private:
  uint64_t At() const { return static_cast<uint64_t>(stream_.CurrentPosition()); }

  void Tell(const InspectItem& item) {
    if (!quiet_ && wanted_) wanted_ = sink_(item);
  }

  // Reads the fields of a message up to `end`, or to the end of the bytes. False: the rest cannot
  // be read.
  bool Message(const Descriptor& type, const std::string& prefix, std::optional<uint64_t> end) {
    while (wanted_) {
      if (end.has_value() && At() >= *end) return At() == *end;
      const uint64_t begin = At();
      const uint32_t tag = stream_.ReadTag();
      if (tag == 0) return !end.has_value() && stream_.ConsumedEntireMessage();
      const FieldDescriptor* field = type.FindFieldByNumber(static_cast<int>(tag >> 3));
      const std::string name =
          prefix + (field != nullptr ? field->name() : fmt::format("unknown field {}", tag >> 3));
      if (!Field(field, name, tag & 7, begin)) return false;
      if (!end.has_value()) sound_bytes_ = At();
    }
    return true;
  }

  bool Field(const FieldDescriptor* field, const std::string& name, uint32_t wire_type,
             uint64_t begin) {
    uint64_t number = 0;
    switch (wire_type) {
      case kVarint:
        if (!stream_.ReadVarint64(&number)) return false;
        Number(name, begin, fmt::format("{}", number));
        return true;
      case kFixed64:
        if (!stream_.ReadLittleEndian64(&number)) return false;
        Number(name, begin, fmt::format("{:016x}", number));
        return true;
      case kFixed32: {
        uint32_t narrow = 0;
        if (!stream_.ReadLittleEndian32(&narrow)) return false;
        Number(name, begin, fmt::format("{:08x}", narrow));
        return true;
      }
      case kBytes:
        return Nested(field, name, begin);
      default:
        return false;
    }
  }

  void Number(const std::string& name, uint64_t begin, std::string value) {
    Tell(FieldItem{.offset = begin,
                   .size_bytes = At() - begin,
                   .name = name,
                   .value = std::move(value),
                   .in_manifest = true});
  }

  bool Nested(const FieldDescriptor* field, const std::string& name, uint64_t begin) {
    uint64_t length = 0;
    if (!stream_.ReadVarint64(&length) ||
        length > static_cast<uint64_t>(std::numeric_limits<int>::max())) {
      return false;
    }
    if (field == nullptr || field->type() != FieldDescriptor::TYPE_MESSAGE) {
      if (!stream_.Skip(static_cast<int>(length))) return false;
      Number(name, begin, fmt::format("{} bytes", length));
      return true;
    }
    const Descriptor& type = *field->message_type();
    const bool was_quiet = quiet_;
    std::string numbered = name;
    if (&type == v1::SliceDelta::descriptor()) {
      frames_ = 0;
      numbered = fmt::format("{}[{}]", name, slices_);
      quiet_ = slices_++ >= limits_.slices;
    } else if (&type == v1::FrameEntry::descriptor()) {
      numbered = fmt::format("{}[{}]", name, frames_);
      if (frames_ == limits_.frames) Tell(OmissionItem{"and more frames"});
      quiet_ = quiet_ || frames_ >= limits_.frames;
      ++frames_;
    }
    // The size includes tag, length and contents.
    Tell(FieldItem{.offset = begin,
                   .size_bytes = At() - begin + length,
                   .name = numbered,
                   .value = fmt::format("{} bytes", length),
                   .in_manifest = true});
    const bool sound = Message(type, numbered + ".", At() + length);
    quiet_ = was_quiet;
    return sound;
  }

  CodedInputStream stream_;
  const InspectLimits limits_;
  const InspectSink& sink_;
  uint64_t sound_bytes_ = 0;  // bytes of complete top-level fields
  uint64_t slices_ = 0;
  uint64_t frames_ = 0;
  bool quiet_ = false;
  bool wanted_ = true;
};

}  // namespace

uint64_t InspectManifest(ByteSpan manifest, const InspectLimits& limits, const InspectSink& sink) {
  return ManifestWalk(manifest, limits, sink).Run();
}

}  // namespace dws::dwsctl
