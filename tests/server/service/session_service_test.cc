// Tests SessionService on the sessions of a fake engine.

#include <memory>
#include <string>

#include "gtest/gtest.h"

#include "quire/v1/session_service.pb.h"
#include "tests/server/memory_server.h"

namespace quire::server {
namespace {

using quire::testing::HasDetails;
using quire::testing::MemoryCall;
using quire::testing::MemoryClient;
using quire::testing::MemoryServer;

class SessionServiceTest : public ::testing::Test {
 protected:
  v1::Session Create() {
    const auto created = client_.Call<v1::Session>(Rpc::kCreateSession, v1::CreateSessionRequest());
    EXPECT_TRUE(created.status.ok()) << created.status;
    return created.response;
  }
  absl::StatusCode CodeOfGet(const std::string& name) {
    v1::GetSessionRequest request;
    request.set_name(name);
    return client_.Call<v1::Session>(Rpc::kGetSession, request).status.code();
  }

  MemoryServer server_;
  MemoryClient client_{server_};
};

TEST_F(SessionServiceTest, IsMadeAppendedToForkedListedAndClosed) {
  const v1::Session session = Create();
  v1::AppendToSessionRequest append;
  append.set_name(session.name());
  append.set_text("hello");
  const auto appended = client_.Call<v1::AppendToSessionResponse>(Rpc::kAppendToSession, append);
  ASSERT_TRUE(appended.status.ok()) << appended.status;
  EXPECT_GT(appended.response.session().num_tokens(), session.num_tokens());

  v1::ForkSessionRequest fork;
  fork.set_name(session.name());
  fork.set_count(2);
  const auto forked = client_.Call<v1::ForkSessionResponse>(Rpc::kForkSession, fork);
  ASSERT_TRUE(forked.status.ok()) << forked.status;
  ASSERT_EQ(forked.response.sessions_size(), 2);
  EXPECT_EQ(forked.response.sessions(1).num_tokens(), appended.response.session().num_tokens());

  v1::ListSessionsRequest list;
  list.set_page_size(2);
  const auto page = client_.Call<v1::ListSessionsResponse>(Rpc::kListSessions, list);
  EXPECT_EQ(page.response.sessions_size(), 2);
  list.set_page_token(page.response.next_page_token());
  EXPECT_EQ(
      client_.Call<v1::ListSessionsResponse>(Rpc::kListSessions, list).response.sessions_size(), 1);

  v1::CloseSessionRequest close;
  close.set_name(session.name());
  EXPECT_TRUE(client_.Call<v1::CloseSessionResponse>(Rpc::kCloseSession, close).status.ok());
  EXPECT_EQ(CodeOfGet(session.name()), absl::StatusCode::kNotFound);
  EXPECT_EQ(CodeOfGet(forked.response.sessions(0).name()), absl::StatusCode::kOk);
}

TEST_F(SessionServiceTest, AContentIsReadOnTheFrontend) {
  const v1::Session session = Create();
  v1::AppendToSessionRequest append;
  append.set_name(session.name());
  append.set_text("hello");
  ASSERT_TRUE(client_.Call<v1::AppendToSessionResponse>(Rpc::kAppendToSession, append).status.ok());
  v1::GetSessionRequest request;
  request.set_name(session.name());
  request.set_content(true);
  const auto whole = client_.Call<v1::Session>(Rpc::kGetSession, request);
  ASSERT_TRUE(whole.status.ok()) << whole.status;
  EXPECT_TRUE(whole.response.has_content());
}

// A call owns the session that it has created.
TEST_F(SessionServiceTest, ConverseClosesTheSessionThatItCreated) {
  v1::ConverseRequest create;
  create.mutable_create();
  for (const bool cancels : {false, true}) {
    std::unique_ptr<MemoryCall> call = client_.Open(Rpc::kConverse);
    call->Send(create);
    v1::ConverseResponse answer;
    ASSERT_TRUE(call->Read(answer));
    const std::string name = answer.session().name();
    EXPECT_EQ(CodeOfGet(name), absl::StatusCode::kOk);
    if (cancels) {
      call->Cancel();
    } else {
      call->SendNoMore();
    }
    EXPECT_FALSE(call->Read(answer));
    EXPECT_EQ(call->Finish().status.code(),
              cancels ? absl::StatusCode::kCancelled : absl::StatusCode::kOk);
    EXPECT_EQ(CodeOfGet(name), absl::StatusCode::kNotFound);
  }
  EXPECT_EQ(server_.counters.Get(static_cast<size_t>(Rpc::kConverse), 0), 1u);
}

TEST_F(SessionServiceTest, ConverseWantsASessionFirst) {
  const v1::Session session = Create();
  v1::ConverseRequest message;
  message.mutable_turn()->set_text("hello");
  auto call = client_.Open(Rpc::kConverse);
  call->Send(message);
  EXPECT_EQ(call->Finish().status.code(), absl::StatusCode::kInvalidArgument);
  message.set_open(session.name());
  call = client_.Open(Rpc::kConverse);
  call->Send(message);
  v1::ConverseResponse answer;
  ASSERT_TRUE(call->Read(answer));
  EXPECT_EQ(answer.session().name(), session.name());
  call->Send(message);  // a second time
  EXPECT_EQ(call->Finish().status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOfGet(session.name()), absl::StatusCode::kOk) << "an opened session stays";
}

}  // namespace
}  // namespace quire::server
