// Walks over messages of one type at a time: a single one, or the elements of a repeated field,
// whose values are added up.
#include "common/service/metrics/status_metrics.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "proto/metric.pb.h"

namespace dws {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Messages = std::vector<const Message*>;

double ValueOf(const Message& message, const FieldDescriptor& field) {
  const Reflection& values = *message.GetReflection();
  if (field.is_repeated()) return values.FieldSize(message, &field);
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return values.GetBool(message, &field) ? 1 : 0;
    case FieldDescriptor::CPPTYPE_ENUM:
      return values.GetEnumValue(message, &field) == 0 ? 0 : 1;
    case FieldDescriptor::CPPTYPE_STRING:
      return values.GetString(message, &field).empty() ? 0 : 1;
    case FieldDescriptor::CPPTYPE_INT64:
      return static_cast<double>(values.GetInt64(message, &field));
    case FieldDescriptor::CPPTYPE_UINT32:
      return values.GetUInt32(message, &field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return static_cast<double>(values.GetUInt64(message, &field));
    default:  // a field of another type is refused here
      return values.GetDouble(message, &field);
  }
}

// Returns the messages in `field` of all of `messages`. A single one that is unset is the default.
Messages Below(const Messages& messages, const FieldDescriptor& field) {
  Messages below;
  for (const Message* message : messages) {
    const Reflection& values = *message->GetReflection();
    if (!field.is_repeated()) below.push_back(&values.GetMessage(*message, &field));
    for (int i = 0; field.is_repeated() && i < values.FieldSize(*message, &field); ++i) {
      below.push_back(&values.GetRepeatedMessage(*message, &field, i));
    }
  }
  return below;
}

// Returns whether `field` has a value in one of `messages`. A field without presence always has.
bool IsSet(const Messages& messages, const FieldDescriptor& field) {
  if (!field.is_repeated() && !field.has_presence()) return true;
  return std::any_of(messages.begin(), messages.end(), [&](const Message* message) {
    const Reflection& values = *message->GetReflection();
    return field.is_repeated() ? values.FieldSize(*message, &field) > 0
                               : values.HasField(*message, &field);
  });
}

void WriteSample(const FieldDescriptor& field, const std::string& name, double value,
                 const MetricLabels& labels, Scrape& scrape) {
  const std::string& help = field.options().GetExtension(v1::help);
  if (name.ends_with("_total")) {
    scrape.Counter(name, help, value, labels);
  } else {
    scrape.Gauge(name, help, value, labels);
  }
}

void WriteField(const Messages& messages, const FieldDescriptor& field, MetricLabels labels,
                Scrape& scrape) {
  const std::string& metric = field.options().GetExtension(v1::metric);
  const size_t brace = std::min(metric.find('{'), metric.size());
  const std::string name = metric.substr(0, brace);
  if (field.is_map()) {  // name{label}
    std::map<std::string, double> entries;
    for (const Message* entry : Below(messages, field)) {
      const std::string key =
          entry->GetReflection()->GetString(*entry, field.message_type()->map_key());
      entries[key] += ValueOf(*entry, *field.message_type()->map_value());
    }
    for (const auto& [key, value] : entries) {
      labels[metric.substr(brace + 1, metric.size() - brace - 2)] = key;
      WriteSample(field, name, value, labels, scrape);
    }
    return;
  }
  if (brace < metric.size()) {  // name{label="value"}
    const size_t quote = metric.find("=\"", brace);
    DWS_CHECK(quote != std::string::npos && metric.ends_with("\"}"));
    labels[metric.substr(brace + 1, quote - brace - 1)] =
        metric.substr(quote + 2, metric.size() - quote - 4);
  }
  double sum = 0;
  for (const Message* message : messages) sum += ValueOf(*message, field);
  WriteSample(field, name, sum, labels, scrape);
}

void WriteMessages(const Messages& messages, const Descriptor& type, MetricLabels labels,
                   Scrape& scrape) {
  std::vector<const FieldDescriptor*> fields;
  bool labelled = false;
  for (int i = 0; i < type.field_count(); ++i) {
    fields.push_back(type.field(i));
    const google::protobuf::FieldOptions& options = fields.back()->options();
    if (options.GetExtension(v1::alone) && IsSet(messages, *fields.back())) {
      fields = {type.field(i)};
      break;
    }
    if (!options.GetExtension(v1::label)) continue;
    labelled = true;
    if (messages.size() == 1) {
      labels[fields.back()->name()] =
          messages[0]->GetReflection()->GetString(*messages[0], fields.back());
    }
  }
  if (labelled && messages.size() != 1) {
    for (const Message* message : messages) WriteMessages({message}, type, labels, scrape);
    return;
  }
  for (const FieldDescriptor* field : fields) {
    if (!IsSet(messages, *field) && !field->options().GetExtension(v1::always)) continue;
    if (field->options().HasExtension(v1::metric)) WriteField(messages, *field, labels, scrape);
    if (field->message_type() != nullptr && !field->is_map()) {
      WriteMessages(Below(messages, *field), *field->message_type(), labels, scrape);
    }
  }
}

}  // namespace

void WriteStatusMetrics(const Message& status, Scrape& scrape) {
  WriteMessages({&status}, *status.GetDescriptor(), {}, scrape);
}

}  // namespace dws
