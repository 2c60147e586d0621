#include "client/request_flags.h"

#include <set>

#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"

namespace quire::client {
namespace {

using ::google::protobuf::Descriptor;
using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::Reflection;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Adds to `names` the full name of each field that is set in `message`. For a field that is one
// nested message, adds the names of the fields that are set in that message instead.
void CollectSet(const Message& message, std::set<std::string>* names) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field->is_repeated()) {
      CollectSet(message.GetReflection()->GetMessage(message, field), names);
    } else {
      names->insert(field->full_name());
    }
  }
}

void CollectDeclared(const Descriptor* descriptor, std::set<std::string>* names) {
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    // The only oneof is the prompt, which has its own flags.
    if (field->real_containing_oneof() != nullptr) continue;
    // resumable, resume_* and session_etag, which StreamResuming sets.
    if (field->name().rfind("resum", 0) == 0 || field->name() == "session_etag") continue;
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field->is_map()) {
      CollectDeclared(field->message_type(), names);
    } else {
      names->insert(field->full_name());
    }
  }
}

TEST(RequestFlagsTest, EveryFieldOfTheRequestHasAFlag) {
  v1::GenerateRequest request;
  base::FlagSet flags("usage", "summary");
  AddRequestFlags(flags, &request);
  std::vector<std::string> args;
  for (const base::Flag& flag : flags.flags()) {
    const std::string value = flag.name == "logit_bias"            ? "1:1"
                              : flag.name == "beam_early_stopping" ? "always"
                                                                   : "1";
    args.push_back("--" + flag.name + "=" + value);
  }
  const absl::Status status = flags.Parse(args);
  ASSERT_TRUE(status.ok()) << status;
  std::set<std::string> set, declared;
  CollectSet(request, &set);
  CollectDeclared(v1::GenerateRequest::descriptor(), &declared);
  EXPECT_EQ(set, declared);
  EXPECT_EQ(set.size(), flags.flags().size());
}

TEST(RequestFlagsTest, AScoreRequestHasTheFlagsOfItsFields) {
  v1::ScoreRequest request;
  base::FlagSet flags("usage", "summary");
  AddRequestFlags(flags, &request);
  const absl::Status status = flags.Parse({"--tenant=t", "--cache_salt=s", "--request_id=r"});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(request.sched().tenant(), "t");
  EXPECT_EQ(request.cache().salt(), "s");
  EXPECT_EQ(request.request_id(), "r");
  EXPECT_THAT(flags.Help(), Not(HasSubstr("Sampling")));
  EXPECT_FALSE(flags.Parse({"--temperature=1"}).ok());
}

TEST(RequestFlagsTest, WhatIsNotGivenStaysAbsent) {
  v1::GenerateRequest request;
  base::FlagSet flags("usage", "summary");
  AddRequestFlags(flags, &request);
  ASSERT_TRUE(flags.Parse({"--temperature=0"}).ok());
  EXPECT_TRUE(request.sampling().has_temperature());
  EXPECT_FALSE(request.sampling().has_top_p());
  EXPECT_FALSE(request.has_stop());
  EXPECT_FALSE(request.has_model());
}

TEST(RequestFlagsTest, ListsMapsAndStrings) {
  v1::GenerateRequest request;
  base::FlagSet flags("usage", "summary");
  AddRequestFlags(flags, &request);
  ASSERT_TRUE(flags
                  .Parse({"--stop", "a,b", "--stop", "c", "--stop_token_ids", "1,2",
                          "--stop_token_ids", "3", "--logit_bias", "5:-2.5", "--logit_bias", "6:1",
                          "--seed", "18446744073709551615", "--ignore_eos", "--text=false"})
                  .ok());
  EXPECT_THAT(request.stop().stop(), ElementsAre("a,b", "c"));
  EXPECT_THAT(request.stop().stop_token_ids(), ElementsAre(1, 2, 3));
  EXPECT_EQ(request.sampling().logit_bias().at(5), -2.5f);
  EXPECT_EQ(request.sampling().logit_bias().at(6), 1.0f);
  EXPECT_EQ(request.sampling().seed(), 18446744073709551615u);
  EXPECT_TRUE(request.stop().ignore_eos());
  EXPECT_FALSE(request.output().text());
}

TEST(RequestFlagsTest, AValueOfTheWrongTypeIsRefused) {
  for (const char* arg :
       {"--n=-1", "--top_k=4294967296", "--logit_bias=5", "--logit_bias=x:1", "--min_p=few"}) {
    v1::GenerateRequest request;
    base::FlagSet flags("usage", "summary");
    AddRequestFlags(flags, &request);
    EXPECT_EQ(flags.Parse({arg}).code(), absl::StatusCode::kInvalidArgument) << arg;
  }
}

TEST(RequestFlagsTest, LeavesOutWhatTheCallerDoesNotWant) {
  v1::GenerateRequest request;
  base::FlagSet flags("usage", "summary");
  AddRequestFlags(flags, &request, {"seed"});
  EXPECT_THAT(std::string(flags.Parse({"--seed=1"}).message()), HasSubstr("--seed: unknown flag"));
}

}  // namespace
}  // namespace quire::client
