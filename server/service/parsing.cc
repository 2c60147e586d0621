#include "server/service/parsing.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/message.h"
#include "google/protobuf/wire_format_lite.h"

namespace quire::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;

constexpr size_t kArrayGrowth = 3;
constexpr size_t kAllocation = 16;  // the allocator's own bytes
constexpr size_t kArrayEntry = kArrayGrowth * sizeof(void*);
constexpr size_t kString = sizeof(std::string) + 2 * kAllocation + kArrayEntry;
constexpr size_t kMapNode = 64;
// An unknown field is an entry in an array, and may have a string.
constexpr size_t kUnknownField = kArrayGrowth * 16 + kString;
constexpr int kMostDepth = 100;  // where a parser stops

// Returns the size of an empty message, with what it costs to hold one.
size_t SizeOf(const Descriptor& type) {
  thread_local absl::flat_hash_map<const Descriptor*, size_t> sizes;
  size_t& size = sizes[&type];
  if (size == 0) {
    const auto* empty = google::protobuf::MessageFactory::generated_factory()->GetPrototype(&type);
    size = empty->SpaceUsedLong() + kAllocation + kArrayEntry;
    if (type.options().map_entry()) size += kMapNode;
  }
  return size;
}

// Returns the size of one number in an array.
size_t SizeOfNumber(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
    case FieldDescriptor::CPPTYPE_UINT64:
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return 8;
    case FieldDescriptor::CPPTYPE_BOOL:
      return 1;
    default:
      return 4;
  }
}

// Reads one message and counts.
class Walk {
 public:
  explicit Walk(google::protobuf::io::ZeroCopyInputStream& wire) : in_(&wire) {}

  size_t size() const { return size_; }

  // Returns false at a byte that is not protobuf.
  bool Read(const Descriptor& type, int depth) {
    if (depth > kMostDepth) return false;
    while (const uint32_t tag = in_.ReadTag()) {
      const FieldDescriptor* const field =
          type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
      if (field == nullptr) size_ += kUnknownField;
      const bool is_array = field != nullptr && field->is_repeated();
      uint64_t number;
      uint32_t number32;
      switch (WireFormatLite::GetTagWireType(tag)) {
        case WireFormatLite::WIRETYPE_VARINT:
          if (!in_.ReadVarint64(&number)) return false;
          break;
        case WireFormatLite::WIRETYPE_FIXED64:
          if (!in_.ReadLittleEndian64(&number)) return false;
          break;
        case WireFormatLite::WIRETYPE_FIXED32:
          if (!in_.ReadLittleEndian32(&number32)) return false;
          break;
        case WireFormatLite::WIRETYPE_LENGTH_DELIMITED:
          if (!ReadDelimited(field, depth)) return false;
          continue;
        case WireFormatLite::WIRETYPE_START_GROUP:
        case WireFormatLite::WIRETYPE_END_GROUP:  // proto3 has none, so these are unknown fields
          size_ += kUnknownField;
          continue;
        default:
          return false;
      }
      if (is_array) size_ += kArrayGrowth * SizeOfNumber(*field);
    }
    return in_.ConsumedEntireMessage();
  }

 private:
  bool ReadDelimited(const FieldDescriptor* field, int depth) {
    uint32_t length;
    if (!in_.ReadVarint32(&length) || length > INT32_MAX) return false;
    if (field == nullptr) return SkipText(length);
    if (field->message_type() != nullptr) {
      size_ += SizeOf(*field->message_type());
      const auto outer = in_.PushLimit(static_cast<int>(length));
      const bool is_whole = Read(*field->message_type(), depth + 1) && in_.BytesUntilLimit() == 0;
      in_.PopLimit(outer);
      return is_whole;
    }
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      size_ += kString;
      return SkipText(length);
    }
    return ReadPacked(*field, length);
  }

  bool SkipText(uint32_t length) {
    const uint64_t before = static_cast<uint64_t>(in_.CurrentPosition());
    const bool is_whole = in_.Skip(static_cast<int>(length));
    size_ += is_whole ? length : in_.CurrentPosition() - before;
    return is_whole;
  }

  bool ReadPacked(const FieldDescriptor& field, uint32_t length) {
    const bool has_fixed_size = field.type() == FieldDescriptor::TYPE_FLOAT ||
                                field.type() == FieldDescriptor::TYPE_FIXED32 ||
                                field.type() == FieldDescriptor::TYPE_SFIXED32 ||
                                field.type() == FieldDescriptor::TYPE_DOUBLE ||
                                field.type() == FieldDescriptor::TYPE_FIXED64 ||
                                field.type() == FieldDescriptor::TYPE_SFIXED64;
    const size_t size_of_number = SizeOfNumber(field);
    while (length > 0) {
      const void* data;
      int available;
      if (!in_.GetDirectBufferPointer(&data, &available)) return false;
      const auto taken = std::min(length, static_cast<uint32_t>(available));
      const auto* const bytes = static_cast<const uint8_t*>(data);
      const auto count = has_fixed_size
                             ? taken / size_of_number + 1
                             : static_cast<size_t>(std::count_if(
                                   bytes, bytes + taken, [](uint8_t byte) { return byte < 0x80; }));
      size_ += kArrayGrowth * size_of_number * count;
      in_.Skip(static_cast<int>(taken));
      length -= taken;
    }
    return true;
  }

  google::protobuf::io::CodedInputStream in_;
  size_t size_ = 0;
};

}  // namespace

size_t ParsedSize(const Descriptor& type, google::protobuf::io::ZeroCopyInputStream& wire) {
  Walk walk(wire);
  walk.Read(type, 0);
  return SizeOf(type) + walk.size();
}

absl::Status ParseMessage(std::string_view bytes, size_t max_parsed_bytes,
                          google::protobuf::Message& message) {
  const auto num_bytes = static_cast<int>(bytes.size());
  google::protobuf::io::ArrayInputStream wire(bytes.data(), num_bytes);
  const size_t size = ParsedSize(*message.GetDescriptor(), wire);
  if (size > max_parsed_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "message: want at most %d bytes of memory when it is read, got %d in a message of %d "
        "bytes; send fewer elements at once",
        max_parsed_bytes, size, num_bytes));
  }
  if (message.ParseFromArray(bytes.data(), num_bytes)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("message: want a %s in proto3's wire format, its strings in UTF-8; got %d "
                      "bytes that are none",
                      message.GetTypeName(), num_bytes));
}

}  // namespace quire::server
