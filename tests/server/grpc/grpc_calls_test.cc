// Tests how gRPC carries calls, with calls that only note what they are told.

#include "server/grpc/grpc_calls.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/server/grpc_client.h"

namespace quire::server {
namespace {

// What a call was told, and how it behaves.
struct Story {
  std::function<void()> in_message;  // runs in OnMessage
  std::promise<std::string> message;
  std::promise<void> no_message, cancelled;
  std::atomic<bool> is_cancelled = false;
};

class ToldCall final : public Call {
 public:
  ToldCall(const CallParts& parts, Transport& transport, Story& story)
      : Call(parts, std::nullopt, transport), story_(story) {}

  void OnMessage(std::string_view bytes) override {
    story_.message.set_value(std::string(bytes));
    if (story_.in_message) story_.in_message();
    if (!story_.in_message) End(absl::OkStatus());
  }
  void OnNoMessage(bool is_cancelled) override {
    Call::OnNoMessage(is_cancelled);
    story_.no_message.set_value();
  }
  void OnCancel() override {
    story_.is_cancelled = true;
    story_.cancelled.set_value();
    End(CancelStatus());
  }

 private:
  Story& story_;
};

// Reads to the end, and ends then, as reflection does.
class ReadingCall final : public Call {
 public:
  ReadingCall(const CallParts& parts, Transport& transport, Story& story)
      : Call(parts, std::nullopt, transport), story_(story) {}

  void OnMessage(std::string_view) override {
    story_.in_message();
    transport().Read();
  }
  void OnNoMessage(bool) override {
    story_.no_message.set_value();
    End(CancelStatus());
  }

 private:
  Story& story_;
};

class GrpcCallsTest : public ::testing::Test {
 protected:
  GrpcCallsTest() {
    calls_.Add("/a.Service/Method", [this](Transport& transport) -> Call* {
      return new ToldCall(parts_, transport, story_);
    });
    calls_.Add("/a.Service/Reading", [this](Transport& transport) -> Call* {
      return new ReadingCall(parts_, transport, story_);
    });
    service_ = ServeCalls(calls_);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterCallbackGenericService(service_.get());
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  ~GrpcCallsTest() override {
    server_->Shutdown();
    server_->Wait();
  }

  Egress egress_;
  RpcCounters counters_;
  AccessLog log_{AccessLogMode::kOff};
  door::PeerDirectory peers_;
  const std::unique_ptr<IdentityStore> identities_ = *IdentityStore::Create("", {});
  const CallParts parts_{.egress = egress_,
                         .counters = counters_,
                         .access_log = log_,
                         .peers = peers_,
                         .identities = *identities_,
                         .linger = absl::Seconds(30)};
  Story story_;
  CallTable calls_;
  std::unique_ptr<grpc::CallbackGenericService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

TEST_F(GrpcCallsTest, AMessageOfManySlicesComesWhole) {
  std::string bytes;
  for (int i = 0; i < 200'000; ++i) absl::StrAppend(&bytes, i, " ");
  testing::GrpcClient client(address_);
  EXPECT_TRUE(client.CallRaw("/a.Service/Method", bytes).status.ok());
  EXPECT_EQ(story_.message.get_future().get(), bytes);
}

TEST_F(GrpcCallsTest, AMethodThatIsNotServedIsNamed) {
  testing::GrpcClient client(address_);
  const absl::Status status = client.CallRaw("/a.Service/Other", "").status;
  EXPECT_TRUE(absl::IsUnimplemented(status));
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("/a.Service/Other"));
}

// The client's deadline passes while the call handles its message. The call learns it afterwards.
TEST_F(GrpcCallsTest, ACallIsCancelledOnlyWhenItHasBegun) {
  std::promise<void> over;
  std::atomic<bool> cancelled_while_it_began = false;
  story_.in_message = [&] {
    over.get_future().wait();
    absl::SleepFor(absl::Milliseconds(100));
    cancelled_while_it_began = story_.is_cancelled.load();
  };
  testing::GrpcClient client(address_);
  const absl::Status status =
      client.CallRaw("/a.Service/Method", "", {.timeout = absl::Milliseconds(200)}).status;
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  over.set_value();
  EXPECT_EQ(story_.cancelled.get_future().wait_for(std::chrono::seconds(10)),
            std::future_status::ready);
  EXPECT_FALSE(cancelled_while_it_began);
}

// A call that waits for its read would never be done, and the server would not stop.
TEST_F(GrpcCallsTest, AReadEndsWhenTheCallIsCancelled) {
  std::promise<void> over;
  story_.in_message = [&] {
    over.get_future().wait();
    absl::SleepFor(absl::Milliseconds(100));  // so that the server knows
  };
  testing::GrpcClient client(address_);
  const absl::Status status =
      client.CallRaw("/a.Service/Reading", "", {.timeout = absl::Milliseconds(200)}).status;
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  over.set_value();
  EXPECT_EQ(story_.no_message.get_future().wait_for(std::chrono::seconds(10)),
            std::future_status::ready);
}

// It has ended by then, and ends once.
TEST_F(GrpcCallsTest, ACallWithoutAMessageIsNotCancelled) {
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
  const auto call = stub.PrepareCall(&context, "/a.Service/Method", &queue);
  const auto wait = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
  };
  call->StartCall(nullptr);
  wait();
  absl::SleepFor(absl::Milliseconds(50));  // so that the call begins
  context.TryCancel();
  grpc::Status status;
  call->Finish(&status, nullptr);
  wait();
  EXPECT_EQ(story_.no_message.get_future().wait_for(std::chrono::seconds(10)),
            std::future_status::ready);
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_FALSE(story_.is_cancelled);
}

}  // namespace
}  // namespace quire::server
