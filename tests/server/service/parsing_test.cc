// Tests that a message takes no more memory than ParsedSize says, so that what is refused by it is
// never parsed.

#include "server/service/parsing.h"

#include <random>
#include <set>
#include <string>
#include <vector>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/message.h"
#include "google/protobuf/wire_format.h"
#include "gtest/gtest.h"

#include "quire/v1/control_service.pb.h"
#include "quire/v1/inference_service.pb.h"
#include "quire/v1/prefix_service.pb.h"
#include "quire/v1/session_service.pb.h"
#include "quire/v1/tenant_service.pb.h"
#include "quire/v1/token_service.pb.h"

namespace quire::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::internal::WireFormat;
using google::protobuf::internal::WireFormatLite;

constexpr size_t kLargest = 4 << 20;      // --max_message_bytes
constexpr size_t kBudget = 6 * kLargest;  // ServiceParts::max_parsed_bytes
constexpr size_t kMostMemory = 8 * kLargest;

// The types of all requests.
std::vector<const Descriptor*> RequestTypes() {
  std::set<const Descriptor*> types;
  for (const FileDescriptor* file :
       {v1::GenerateRequest::descriptor()->file(), v1::TokenizeRequest::descriptor()->file(),
        v1::Prefix::descriptor()->file(), v1::Session::descriptor()->file(),
        v1::Tenant::descriptor()->file(), v1::DrainRequest::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m) {
        types.insert(file->service(s)->method(m)->input_type());
      }
    }
  }
  return {types.begin(), types.end()};
}

std::unique_ptr<Message> New(const Descriptor& type) {
  return std::unique_ptr<Message>(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(&type)->New());
}

size_t SizeOfWire(const Descriptor& type, const std::string& wire, int block = -1) {
  google::protobuf::io::ArrayInputStream in(wire.data(), static_cast<int>(wire.size()), block);
  return ParsedSize(type, in);
}

std::string Tag(const FieldDescriptor& field, WireFormatLite::WireType type) {
  std::string tag;
  google::protobuf::io::StringOutputStream out(&tag);
  google::protobuf::io::CodedOutputStream coded(&out);
  coded.WriteTag(WireFormatLite::MakeTag(field.number(), type));
  coded.Trim();
  return tag;
}

std::string Delimited(const FieldDescriptor& field, const std::string& body) {
  std::string text = Tag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
  google::protobuf::io::StringOutputStream out(&text);
  google::protobuf::io::CodedOutputStream coded(&out);
  coded.WriteVarint32(static_cast<uint32_t>(body.size()));
  coded.WriteString(body);
  coded.Trim();
  return text;
}

// Returns `bytes` bytes of the smallest elements of `field`.
std::string Many(const FieldDescriptor& field, size_t bytes, bool packed) {
  std::string element;
  if (packed) {
    const size_t fixed =
        WireFormat::WireTypeForFieldType(field.type()) == WireFormatLite::WIRETYPE_FIXED32 ? 4 : 1;
    return Delimited(field, std::string(bytes / fixed * fixed, '\x01'));
  }
  switch (WireFormat::WireTypeForFieldType(field.type())) {
    case WireFormatLite::WIRETYPE_LENGTH_DELIMITED:
      element = Delimited(field, "");
      break;
    case WireFormatLite::WIRETYPE_FIXED32:
      element = Tag(field, WireFormatLite::WIRETYPE_FIXED32) + std::string(4, '\x01');
      break;
    default:
      element = Tag(field, WireFormatLite::WIRETYPE_VARINT) + "\x01";
  }
  std::string many;
  many.reserve(bytes);
  while (many.size() + element.size() <= bytes) many += element;
  return many;
}

// Sends 4 MiB in each repeated field, in place of all others.
class Flood {
 public:
  void Root(const Descriptor& type) {
    root_ = &type;
    Walk(type, {});
  }

  int num_fields = 0, num_refused = 0;

 private:
  void Walk(const Descriptor& type, std::vector<const FieldDescriptor*> path) {
    if (path.size() > 4) return;
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      if (field.is_repeated()) {
        Send(field, path, false);
        if (field.is_packable()) Send(field, path, true);
      }
      if (field.message_type() != nullptr) {
        path.push_back(&field);
        Walk(*field.message_type(), path);
        path.pop_back();
      }
    }
  }

  void Send(const FieldDescriptor& field, const std::vector<const FieldDescriptor*>& path,
            bool packed) {
    std::string wire = Many(field, kLargest - 64, packed);
    for (size_t i = path.size(); i-- > 0;) wire = Delimited(*path[i], wire);
    ++num_fields;
    const size_t size = SizeOfWire(*root_, wire);
    if (size > kBudget) {
      ++num_refused;
      return;
    }
    const std::unique_ptr<Message> message = New(*root_);
    EXPECT_TRUE(message->ParseFromString(wire)) << field.full_name();
    EXPECT_LE(message->SpaceUsedLong(), size) << field.full_name();
    EXPECT_LT(message->SpaceUsedLong(), kMostMemory) << field.full_name();
  }

  const Descriptor* root_ = nullptr;
};

TEST(ParsedSizeTest, NoRepeatedFieldOfARequestTakesEightTimesItsMessage) {
  Flood flood;
  for (const Descriptor* type : RequestTypes()) flood.Root(*type);
  EXPECT_GT(flood.num_fields, 20);
  EXPECT_GT(flood.num_refused, 10);
  EXPECT_LT(flood.num_refused, flood.num_fields);
}

// Fills the fields of a message with anything.
void Fill(Message& message, std::mt19937& random, int depth) {
  const auto pick = [&](int most) { return static_cast<int>(random() % (most + 1)); };
  const Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* const field = message.GetDescriptor()->field(i);
    const int count = field->is_repeated() ? (pick(4) == 0 ? pick(100) : pick(3)) : pick(1);
    for (int k = 0; k < count; ++k) {
      const bool repeated = field->is_repeated();
      switch (field->cpp_type()) {
        case FieldDescriptor::CPPTYPE_MESSAGE:
          if (depth == 0) break;
          Fill(repeated ? *reflection.AddMessage(&message, field)
                        : *reflection.MutableMessage(&message, field),
               random, depth - 1);
          break;
        case FieldDescriptor::CPPTYPE_STRING: {
          const std::string text(static_cast<size_t>(pick(40)), 't');
          repeated ? reflection.AddString(&message, field, text)
                   : reflection.SetString(&message, field, text);
          break;
        }
        case FieldDescriptor::CPPTYPE_INT32:
          repeated ? reflection.AddInt32(&message, field, pick(300))
                   : reflection.SetInt32(&message, field, pick(300));
          break;
        case FieldDescriptor::CPPTYPE_UINT64:
          repeated ? reflection.AddUInt64(&message, field, static_cast<uint64_t>(pick(300)))
                   : reflection.SetUInt64(&message, field, static_cast<uint64_t>(pick(300)));
          break;
        case FieldDescriptor::CPPTYPE_FLOAT:
          if (!repeated) reflection.SetFloat(&message, field, 1.5f);
          break;
        default:
          break;
      }
    }
  }
}

TEST(ParsedSizeTest, AMessageTakesNoMoreThanItSays) {
  std::mt19937 random(1);
  const std::vector<const Descriptor*> types = RequestTypes();
  int num_large = 0;
  for (int i = 0; i < 2000; ++i) {
    const Descriptor& type = *types[static_cast<size_t>(i) % types.size()];
    const std::unique_ptr<Message> message = New(type);
    Fill(*message, random, 4);
    std::string wire = message->SerializeAsString();
    // Fields that nobody knows are kept, too.
    if (i % 3 == 0) wire += std::string(static_cast<size_t>(i % 50), '\xa8') + "\x7f\x01";
    const std::unique_ptr<Message> parsed = New(type);
    parsed->ParsePartialFromString(wire);
    const size_t size = SizeOfWire(type, wire);
    EXPECT_LE(parsed->SpaceUsedLong(), size) << type.full_name();
    num_large += wire.size() > 1000 ? 1 : 0;
    EXPECT_EQ(SizeOfWire(type, wire, 7), size) << "in pieces";
  }
  EXPECT_GT(num_large, 50);
}

TEST(ParsedSizeTest, HonestRequestsAreFarBelowTheBudget) {
  v1::GenerateBatchRequest batch;
  for (int i = 0; i < 10'000; ++i) {
    v1::GenerateRequest& request = *batch.add_requests();
    request.set_text("What is the capital of France? Answer in one word.");
    request.mutable_stop()->set_max_tokens(16);
    request.mutable_sampling()->set_temperature(0);
  }
  EXPECT_LT(SizeOfWire(*batch.GetDescriptor(), batch.SerializeAsString()), kBudget);
  v1::GenerateRequest ids;
  for (int i = 0; i < 1'000'000; ++i) ids.mutable_token_ids()->add_ids(i % 150'000);
  EXPECT_LT(SizeOfWire(*ids.GetDescriptor(), ids.SerializeAsString()), kBudget);
}

TEST(ParsedSizeTest, StopsAtWhatIsNoMessage) {
  const Descriptor& type = *v1::GenerateBatchRequest::descriptor();
  const size_t empty = SizeOfWire(type, "");
  for (const std::string& wire : {std::string("\x0a\xff\xff\xff\xff\x7f"), std::string(50, '\xff'),
                                  std::string("\x0a\x05\x0a"), std::string(200, '\x0b')}) {
    EXPECT_LT(SizeOfWire(type, wire), empty + 100'000);
  }
}

}  // namespace
}  // namespace quire::server
