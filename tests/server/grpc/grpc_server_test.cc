// Tests TokenService, ControlService and reflection over gRPC on loopback. Also tests which
// services the server offers to which callers.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "google/protobuf/descriptor_database.h"
#include "google/rpc/error_details.pb.h"
#include "gtest/gtest.h"

#include "tests/server/certificates.h"
#include "tests/server/temp_file.h"
#include "tests/server/test_server.h"

namespace quire::server {
namespace {

using quire::testing::CallOptions;
using quire::testing::FakeEngine;
using quire::testing::GrpcClient;
using quire::testing::HasDetails;
using quire::testing::Health;
using quire::testing::Identity;
using quire::testing::MakeAuthority;
using quire::testing::MakeIdentity;
using quire::testing::Outcome;
using quire::testing::Prompt;
using quire::testing::ReadAll;
using quire::testing::TestServer;
using quire::testing::UnreadCall;
using quire::testing::WriteTempFile;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

TEST(TokenServiceTest, Answers) {
  TestServer server;
  GrpcClient client(server.grpc->address());
  v1::TokenizeRequest tokenize;
  tokenize.set_text("a\xC3\xBC");
  auto tokens = client.Tokenize(tokenize);
  ASSERT_TRUE(tokens.status.ok()) << tokens.status;
  ASSERT_EQ(tokens.response.tokens_size(), 4);
  EXPECT_EQ(tokens.response.tokens(0).piece(), "<s>");  // added by default
  EXPECT_EQ(tokens.response.tokens(1).id(), 'a');
  EXPECT_EQ(tokens.response.tokens(3).begin(), 2u);
  EXPECT_EQ(tokens.response.tokens(3).end(), 3u);
  EXPECT_EQ(tokens.response.tokens(3).piece(), "\xEF\xBF\xBD");  // this token is half a character
  tokenize.set_add_special_tokens(false);
  tokenize.set_parse_special_tokens(true);
  tokens = client.Tokenize(tokenize);
  EXPECT_EQ(tokens.response.tokens(0).piece(), "a");
  EXPECT_EQ(tokens.response.tokens(3).piece(), "parsed");
  for (const auto& [use, first] : {std::pair(v1::TokenizeRequest::USE_UNSPECIFIED, "<s>"),
                                   {v1::TokenizeRequest::USE_PROMPT, "<s>"},
                                   {v1::TokenizeRequest::USE_CHAT, "chat"},
                                   {v1::TokenizeRequest::USE_CONTINUATION, "a"},
                                   {v1::TokenizeRequest::USE_WHOLE, "whole"}}) {
    tokenize.set_use(use);
    tokenize.clear_add_special_tokens();
    EXPECT_EQ(client.Tokenize(tokenize).response.tokens(0).piece(), first);
    tokenize.set_add_special_tokens(false);
    EXPECT_EQ(client.Tokenize(tokenize).response.tokens(0).piece(), "a") << first;
  }
  tokenize.set_use(static_cast<v1::TokenizeRequest::Use>(5));
  EXPECT_EQ(client.Tokenize(tokenize).status.message(),
            "use: want one of PROMPT, CHAT, CONTINUATION, WHOLE, got 5");

  v1::DetokenizeRequest detokenize;
  for (const int id : {1, int{'h'}, int{'i'}}) detokenize.add_token_ids(id);
  EXPECT_EQ(client.Detokenize(detokenize).response.text(), "hi");
  detokenize.set_skip_special_tokens(false);
  EXPECT_EQ(client.Detokenize(detokenize).response.text(), "\x01hi");
  detokenize.add_token_ids(1000);
  const auto refused = client.Detokenize(detokenize);
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kInvalidArgument);
  google::rpc::BadRequest bad_request;
  EXPECT_TRUE(HasDetails(refused, bad_request));

  v1::ApplyChatTemplateRequest chat;
  EXPECT_EQ(client.ApplyChatTemplate(chat).status.code(), absl::StatusCode::kInvalidArgument);
  chat.mutable_chat()->add_messages()->set_role("user");
  EXPECT_EQ(client.ApplyChatTemplate(chat).response.text(), "user: \nassistant: ");
  chat.set_add_generation_prompt(false);
  EXPECT_EQ(client.ApplyChatTemplate(chat).response.text(), "user: \n");
  chat.set_model("another");
  EXPECT_EQ(client.ApplyChatTemplate(chat).status.code(), absl::StatusCode::kNotFound);
}

TEST(TokenServiceTest, ACallWaitsAsOneOfItsTenant) {
  ServerConfig config;
  config.auth_token_file = WriteTempFile("tokens", "token-of-alice-0123\n");
  TestServer server({}, config);
  GrpcClient client(server.grpc->address());
  const CallOptions alice{.metadata = {{"authorization", "Bearer token-of-alice-0123"}}};
  ASSERT_TRUE(client.Generate(Prompt(), alice).status.ok());
  ASSERT_TRUE(client.Tokenize({}, alice).status.ok());
  EXPECT_NE(server.engine.last_frontend_tenant(), "");
  EXPECT_EQ(server.engine.last_frontend_tenant(), server.engine.last_params().sched.tenant);
}

// One tenant of several may hold half of the 256 MiB of all. A call holds twice its request and its
// answer, 9 MiB here, so the 15th is refused. Without the request or without the answer, 17
// would fit.
TEST(TokenServiceTest, ATenantsUnreadAnswersAreBounded) {
  ServerConfig config;
  config.auth_token_file = WriteTempFile("tokens", "token-of-alice-0123\ntoken-of-bob-012345\n");
  TestServer server({}, config);
  GrpcClient client(server.grpc->address());
  const CallOptions alice{.metadata = {{"authorization", "Bearer token-of-alice-0123"}}};
  const CallOptions bob{.metadata = {{"authorization", "Bearer token-of-bob-012345"}}};
  v1::ApplyChatTemplateRequest chat;
  chat.mutable_chat()->add_messages()->set_content(std::string(3 << 20, 'a'));
  std::vector<std::unique_ptr<UnreadCall>> unread;
  for (int i = 0; i < 17; ++i) {
    unread.push_back(client.CallUnread("/quire.v1.TokenService/ApplyChatTemplate",
                                       chat.SerializeAsString(), alice));
  }
  const auto refused = client.ApplyChatTemplate(chat, alice);
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status.message()),
              HasSubstr("bytes of requests and unread answers"));
  EXPECT_TRUE(client.ApplyChatTemplate(chat, bob).status.ok()) << "others go on";
  unread.clear();
  const absl::Time end = absl::Now() + absl::Seconds(10);
  while (!client.ApplyChatTemplate(chat, alice).status.ok()) ASSERT_LT(absl::Now(), end);
}

TEST(ControlServiceTest, Answers) {
  TestServer server;
  GrpcClient client(server.grpc->address());
  const auto models = client.ListModels();
  ASSERT_TRUE(models.status.ok()) << models.status;
  ASSERT_EQ(models.response.models_size(), 1);
  EXPECT_EQ(models.response.models(0).name(), "fake-model");
  v1::GetModelInfoRequest request;
  const auto info = client.GetModelInfo(request);
  EXPECT_EQ(info.response.model().kv_bytes_per_token(), 23040u);
  EXPECT_EQ(info.response.model().bos_id(), 1);
  EXPECT_EQ(info.response.model().end_ids_size(), 2);
  request.set_model("another");
  EXPECT_EQ(client.GetModelInfo(request).status.code(), absl::StatusCode::kNotFound);
  const auto server_info = client.GetServerInfo();
  EXPECT_EQ(server_info.response.version(), "1.2.3");
  EXPECT_EQ(server_info.response.isa_path(), "portable");
  EXPECT_EQ(server_info.response.hash_scheme(), "xxh3-128");
  EXPECT_EQ(server_info.response.numerics(), "cpu-7");
  const auto stats = client.GetStats();
  EXPECT_EQ(stats.response.queue().num_waiting(), 3u);
  EXPECT_EQ(stats.response.blocks().free(), 5u);
  EXPECT_EQ(stats.response.blocks().cached(), 3u);
  EXPECT_EQ(stats.response.blocks().held(), 2u);
  EXPECT_EQ(stats.response.tokens().prompt_cached(), 12u);
  EXPECT_EQ(stats.response.tokens().recomputed(), 14u);
  EXPECT_EQ(stats.response.sequences().finished_abort(), 23u);
  EXPECT_EQ(stats.response.latency().first_tokens(), 4u + 5u + 6u);
  EXPECT_EQ(stats.response.latency().ttft_seconds(), 12.5);
  EXPECT_FALSE(stats.response.draining());
}

TEST(TenantServiceTest, ShowsLimitsAndUse) {
  TestServer server;
  GrpcClient client(server.grpc->address());
  const auto unused = client.GetQuota();
  ASSERT_TRUE(unused.status.ok()) << unused.status;
  EXPECT_EQ(unused.response.name(), "");
  EXPECT_EQ(unused.response.share(), 1u);
  EXPECT_FALSE(unused.response.has_requests_left());
  EXPECT_FALSE(unused.response.has_tokens_left());

  engine::TenantUsages usages{.tenants = {{}}, .num_lasting = 1};
  usages.tenants[0] = {.name = "acme",
                       .limits = {.max_waiting = 7,
                                  .max_running = 8,
                                  .max_blocks = 40,
                                  .share = 3,
                                  .requests_per_minute = 60,
                                  .tokens_per_minute = 1000},
                       .counts = {.requests = 4, .refused = 5, .served_tokens = 6},
                       .num_requests = 2,
                       .charged_blocks = 7.5,
                       .requests_left = 12.5,
                       .tokens_left = -30};
  server.engine.SetTenantUsages(usages);
  const auto list = client.ListTenants();
  ASSERT_TRUE(list.status.ok()) << list.status;
  ASSERT_EQ(list.response.tenants_size(), 1);
  const v1::Tenant& tenant = list.response.tenants(0);
  EXPECT_EQ(tenant.name(), "acme");
  EXPECT_EQ(tenant.share(), 3u);
  EXPECT_EQ(tenant.max_waiting(), 7u);
  EXPECT_EQ(tenant.max_running(), 8u);
  EXPECT_EQ(tenant.max_blocks(), 40u);
  EXPECT_EQ(tenant.charged_blocks(), 7.5);
  EXPECT_EQ(tenant.requests_per_minute(), 60u);
  EXPECT_EQ(tenant.tokens_per_minute(), 1000u);
  EXPECT_EQ(tenant.requests_left(), 12.5);
  EXPECT_EQ(tenant.tokens_left(), -30);
  EXPECT_EQ(tenant.num_requests(), 2u);
  EXPECT_EQ(tenant.accepted_requests(), 4u);
  EXPECT_EQ(tenant.refused_requests(), 5u);
  EXPECT_EQ(tenant.served_tokens(), 6u);
}

TEST(ControlServiceTest, AbortEndsARequest) {
  TestServer server({.default_max_tokens = 1 << 30});
  GrpcClient client(server.grpc->address());
  v1::AbortRequest abort;
  EXPECT_EQ(client.Abort(abort).status.code(), absl::StatusCode::kInvalidArgument);
  abort.set_request_id("r");
  EXPECT_EQ(client.Abort(abort).status.code(), absl::StatusCode::kNotFound);
  v1::GenerateRequest request = Prompt();
  request.set_request_id("r");
  auto stream = client.GenerateStream(request);
  v1::GenerateStreamResponse message;
  ASSERT_TRUE(stream->Read(message));
  EXPECT_TRUE(client.Abort(abort).status.ok());
  ReadAll(*stream);
  const Outcome outcome = stream->Finish();
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(outcome.status.message(), "cancelled");
}

TEST(HealthTest, NamesEveryServiceAndTurnsWhenDraining) {
  TestServer server({.default_max_tokens = 3, .held = true});
  GrpcClient client(server.grpc->address());
  const char* const services[] = {"",
                                  "quire.v1.InferenceService",
                                  "quire.v1.PrefixService",
                                  "quire.v1.SessionService",
                                  "quire.v1.TokenService",
                                  "quire.v1.ControlService",
                                  "quire.v1.TenantService"};
  for (const char* service : services) EXPECT_EQ(client.CheckHealth(service), Health::kServing);
  EXPECT_EQ(client.CheckHealth("quire.v1.Nothing"), Health::kNoSuchService);

  auto running = client.GenerateStream(Prompt());
  ASSERT_TRUE(server.engine.WaitFor([&] { return server.engine.num_running() == 1; }));
  const auto drain = client.Drain();
  ASSERT_TRUE(drain.status.ok()) << drain.status;
  EXPECT_EQ(drain.response.num_running(), 1u);
  for (const char* service : services) EXPECT_EQ(client.CheckHealth(service), Health::kNotServing);
  EXPECT_EQ(client.Generate(Prompt()).status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(client.GetStats().response.draining());
  server.engine.Release();
  EXPECT_FALSE(ReadAll(*running).empty());
  EXPECT_TRUE(running->Finish().status.ok()) << "what ran before the drain finishes";
}

TEST(GrpcServerTest, StopCancelsWhatStillRunsAtItsDeadline) {
  TestServer server({.default_max_tokens = 1 << 30});
  GrpcClient client(server.grpc->address());
  auto stream = client.GenerateStream(Prompt());
  v1::GenerateStreamResponse message;
  ASSERT_TRUE(stream->Read(message));
  server.grpc->Stop(absl::Now());
  EXPECT_TRUE(server.engine.WaitFor([&] { return server.engine.num_running() == 0; }));
  EXPECT_EQ(server.open_calls.Get(), 0);
  ReadAll(*stream);
  EXPECT_FALSE(stream->Finish().status.ok());
}

TEST(GrpcServerTest, ATakenPortIsAnError) {
  TestServer first;
  Egress egress;
  FakeEngine engine;
  RpcCounters counters;
  OpenCalls open_calls;
  door::DoorCounters door_counters;
  ServerConfig config;
  config.listen = first.grpc->address();
  const auto identities = IdentityStore::Create("", {});
  const auto second = GrpcServer::Start(config, {},
                                        {.engine = engine,
                                         .egress = egress,
                                         .counters = counters,
                                         .open_calls = open_calls,
                                         .door_counters = door_counters,
                                         .identities = **identities});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(config.listen));
}

TEST(GrpcServerTest, AMessageOverTheLimitIsRefused) {
  ServerConfig config;
  config.max_message_bytes = 4096;
  TestServer server({}, config);
  GrpcClient client(server.grpc->address());
  EXPECT_TRUE(client.Generate(Prompt(std::string(3000, 'x'))).status.ok());
  EXPECT_EQ(client.Generate(Prompt(std::string(5000, 'x'))).status.code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(GrpcServerTest, ControlIsNotServedToStrangers) {
  ServerConfig config;
  config.listen = "0.0.0.0:0";
  TestServer server({}, config);
  EXPECT_EQ(server.grpc->control_address(), "");
  const std::string address = server.grpc->address();
  GrpcClient client(absl::StrCat("127.0.0.1", address.substr(address.rfind(':'))));
  EXPECT_TRUE(client.Generate(Prompt()).status.ok());
  EXPECT_EQ(client.GetStats().status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(client.Drain().status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(client.FlushPrefixCache().status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_FALSE(client.HasReflection());
  EXPECT_EQ(client.CheckHealth(""), Health::kServing);
  EXPECT_EQ(client.CheckHealth("quire.v1.ControlService"), Health::kNoSuchService);
}

TEST(GrpcServerTest, ControlMayHaveAnAddressOfItsOwn) {
  ServerConfig config;
  config.control_listen = "127.0.0.1:0";
  TestServer server({}, config);
  GrpcClient main(server.grpc->address());
  GrpcClient control(server.grpc->control_address());
  EXPECT_EQ(main.GetStats().status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_FALSE(main.HasReflection());
  EXPECT_EQ(main.Drain().status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(main.FlushPrefixCache().status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_TRUE(control.GetStats().status.ok());
  EXPECT_TRUE(control.HasReflection());
  EXPECT_EQ(control.Generate(Prompt()).status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_TRUE(control.Drain().status.ok());
  EXPECT_EQ(main.CheckHealth(""), Health::kNotServing);
}

// Builds each listed service from the descriptors in the answers, as `grpcurl describe` does.
TEST(ReflectionTest, DescribesEveryServiceThatItLists) {
  using grpc::reflection::v1::ServerReflectionRequest;
  TestServer server;
  GrpcClient client(server.grpc->address());
  for (const char* version : {"v1", "v1alpha"}) {
    ServerReflectionRequest list;
    list.set_list_services("");
    const auto listed = client.Reflect(version, list);
    std::vector<std::string> names;
    for (const auto& service : listed.list_services_response().service()) {
      names.push_back(service.name());
    }
    EXPECT_THAT(names,
                UnorderedElementsAre("quire.v1.InferenceService", "quire.v1.PrefixService",
                                     "quire.v1.SessionService", "quire.v1.TokenService",
                                     "quire.v1.ControlService", "quire.v1.TenantService",
                                     "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
                                     "grpc.reflection.v1alpha.ServerReflection"))
        << version;
    for (const std::string& name : names) {
      ServerReflectionRequest of;
      of.set_file_containing_symbol(name);
      const auto answer = client.Reflect(version, of);
      google::protobuf::SimpleDescriptorDatabase files;
      for (const std::string& bytes : answer.file_descriptor_response().file_descriptor_proto()) {
        google::protobuf::FileDescriptorProto file;
        ASSERT_TRUE(file.ParseFromString(bytes));
        files.Add(file);
      }
      google::protobuf::DescriptorPool pool(&files);
      EXPECT_NE(pool.FindServiceByName(name), nullptr) << version << ": " << name;
    }
  }
}

TEST(ReflectionTest, AnswersTheOtherQuestions) {
  using grpc::reflection::v1::ServerReflectionRequest;
  TestServer server;
  GrpcClient client(server.grpc->address());
  ServerReflectionRequest request;
  request.set_file_by_filename("quire/v1/inference_service.proto");
  // Itself and the files that it imports: chat.proto, status.proto, and any.proto by the latter.
  EXPECT_EQ(client.Reflect("v1", request).file_descriptor_response().file_descriptor_proto_size(),
            4);
  request.set_file_by_filename("none.proto");
  EXPECT_EQ(client.Reflect("v1", request).error_response().error_code(), 5);  // NOT_FOUND
  request.set_file_containing_symbol("quire.v1.Nothing");
  EXPECT_EQ(client.Reflect("v1", request).error_response().error_code(), 5);
  EXPECT_EQ(client.Reflect("v1", request).original_request().file_containing_symbol(),
            "quire.v1.Nothing");
  request.set_all_extension_numbers_of_type("quire.v1.GenerateRequest");
  EXPECT_EQ(client.Reflect("v1", request).all_extension_numbers_response().base_type_name(),
            "quire.v1.GenerateRequest");
  request.mutable_file_containing_extension()->set_containing_type("quire.v1.GenerateRequest");
  EXPECT_EQ(client.Reflect("v1", request).error_response().error_code(), 5);
  EXPECT_EQ(client.Reflect("v1", {}).error_response().error_code(), 3);  // INVALID_ARGUMENT
}

TEST(AuthTest, WithoutAKnownTokenNothingIsServedButHealth) {
  ServerConfig config;
  config.auth_token_file = WriteTempFile("tokens", "token-of-alice-0123\ntoken-of-bob-012345\n");
  TestServer server({.default_max_tokens = 1 << 30}, config);
  GrpcClient client(server.grpc->address());
  const CallOptions wrong{.metadata = {{"authorization", "Bearer token-of-carol-0123"}}};
  for (const CallOptions& options : {CallOptions(), wrong}) {
    const auto code = absl::StatusCode::kUnauthenticated;
    EXPECT_EQ(client.Generate(Prompt(), options).status.code(), code);
    auto stream = client.GenerateStream(Prompt(), options);
    EXPECT_TRUE(ReadAll(*stream).empty());
    EXPECT_EQ(stream->Finish().status.code(), code);
    EXPECT_EQ(client.Tokenize({}, options).status.code(), code);
    EXPECT_EQ(client.Detokenize({}, options).status.code(), code);
    EXPECT_EQ(client.ApplyChatTemplate({}, options).status.code(), code);
    EXPECT_EQ(client.ListModels(options).status.code(), code);
    EXPECT_EQ(client.GetModelInfo({}, options).status.code(), code);
    EXPECT_EQ(client.GetServerInfo(options).status.code(), code);
    EXPECT_EQ(client.GetStats(options).status.code(), code);
    EXPECT_EQ(client.Abort({}, options).status.code(), code);
    EXPECT_EQ(client.Drain(options).status.code(), code);
    EXPECT_EQ(client.FlushPrefixCache(options).status.code(), code);
  }
  EXPECT_FALSE(server.engine.stats().draining);
  EXPECT_EQ(client.CheckHealth(""), Health::kServing);

  const CallOptions alice{.metadata = {{"authorization", "Bearer token-of-alice-0123"}}};
  const CallOptions bob{.metadata = {{"authorization", "Bearer token-of-bob-012345"}}};
  v1::GenerateRequest request = Prompt();
  request.set_request_id("hers");
  auto stream = client.GenerateStream(request, alice);
  v1::GenerateStreamResponse message;
  ASSERT_TRUE(stream->Read(message));
  v1::AbortRequest abort;
  abort.set_request_id("hers");
  EXPECT_EQ(client.Abort(abort, bob).status.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(client.Abort(abort, alice).status.ok());
  ReadAll(*stream);
  EXPECT_EQ(stream->Finish().status.code(), absl::StatusCode::kCancelled);
}

// Every RPC that reflection describes, with the gate at the door open: the handlers ask, too.
TEST(AuthTest, NoRightIsCheckedAtTheDoorAlone) {
  using grpc::reflection::v1::ServerReflectionRequest;
  const door::PeerGate open = [](const door::RequestHead&, const door::Peer&) {
    return std::nullopt;
  };
  ServerReflectionRequest list;
  list.set_list_services("");
  std::vector<std::string> names;
  {
    TestServer server;
    const auto listed = GrpcClient(server.grpc->address()).Reflect("v1", list);
    for (const auto& each : listed.list_services_response().service()) names.push_back(each.name());
  }
  ServerConfig config;
  config.auth_token_file = WriteTempFile("tokens", "token-of-alice-0123\n");
  TestServer server({}, config, {}, open);
  GrpcClient client(server.grpc->address());
  int num_rpcs = 0;
  for (const std::string& name : names) {
    if (name == "grpc.health.v1.Health") continue;  // needs nobody
    const auto* service =
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
    ASSERT_NE(service, nullptr) << name;
    for (int i = 0; i < service->method_count(); ++i, ++num_rpcs) {
      const std::string path = absl::StrCat("/", name, "/", service->method(i)->name());
      for (const std::string body : {"", "\xff"}) {  // "\xff" is no message, and nobody may know
        EXPECT_EQ(client.CallRaw(path, body).status.code(), absl::StatusCode::kUnauthenticated)
            << path;
      }
    }
  }
  EXPECT_GT(num_rpcs, 30);
  EXPECT_FALSE(server.engine.stats().draining);
  // Reflection is for operators, and Alice is none.
  const CallOptions alice{.metadata = {{"authorization", "Bearer token-of-alice-0123"}}};
  for (const std::string version : {"v1", "v1alpha"}) {
    const std::string path =
        absl::StrCat("/grpc.reflection.", version, ".ServerReflection/ServerReflectionInfo");
    EXPECT_EQ(client.CallRaw(path, "", alice).status.code(), absl::StatusCode::kPermissionDenied);
  }
}

TEST(TlsTest, EncryptsAndAsksForACertificate) {
  const Identity authority = MakeAuthority("authority");
  const Identity localhost = MakeIdentity("localhost", authority);
  const Identity alice = MakeIdentity("alice", authority);
  const Identity stranger = MakeIdentity("stranger", MakeAuthority("another"));
  const TlsFiles tls{.cert_chain = localhost.cert, .private_key = localhost.key};
  {
    TestServer server({}, {}, tls);
    EXPECT_TRUE(GrpcClient(server.grpc->address(), {.ca = authority.cert}).GetStats().status.ok());
    EXPECT_FALSE(
        GrpcClient(server.grpc->address()).GetStats({.timeout = absl::Seconds(1)}).status.ok());
  }
  TlsFiles mutual = tls;
  mutual.client_ca = authority.cert;
  ServerConfig config;
  config.tls_client_ca = "given";
  TestServer server({}, config, mutual);
  const auto status = [&](const Identity& identity) {
    GrpcClient client(server.grpc->address(),
                      {.ca = authority.cert, .cert = identity.cert, .key = identity.key});
    return client.Generate(Prompt(), {.timeout = absl::Seconds(2)}).status;
  };
  EXPECT_TRUE(status(alice).ok()) << status(alice);
  EXPECT_EQ(server.engine.last_params().owner, "alice");
  EXPECT_EQ(server.engine.last_params().sched.tenant, "alice");
  EXPECT_FALSE(status(stranger).ok());
  EXPECT_FALSE(status({}).ok());
}

TEST(TlsTest, CertificatesMayChangeWhileItServes) {
  const Identity old_authority = MakeAuthority("old");
  const Identity new_authority = MakeAuthority("new");
  const auto files = [](const Identity& authority) {
    const Identity localhost = MakeIdentity("localhost", authority);
    return TlsFiles{.cert_chain = localhost.cert, .private_key = localhost.key};
  };
  TestServer server({}, {}, files(old_authority));
  const auto ok = [&](const Identity& authority) {
    GrpcClient client(server.grpc->address(), {.ca = authority.cert});
    return client.Generate(Prompt(), {.timeout = absl::Seconds(2)}).status.ok();
  };
  GrpcClient before(server.grpc->address(), {.ca = old_authority.cert});
  EXPECT_TRUE(before.Generate(Prompt()).status.ok());
  EXPECT_TRUE(server.grpc->SetTls(files(new_authority)).ok());
  EXPECT_TRUE(ok(new_authority));
  EXPECT_FALSE(ok(old_authority));
  EXPECT_TRUE(before.Generate(Prompt()).status.ok());  // the old connection goes on
  TlsFiles broken = files(old_authority);
  broken.private_key = MakeIdentity("another", old_authority).key;
  EXPECT_EQ(server.grpc->SetTls(broken).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(ok(new_authority));
}

TEST(TlsTest, ConnectionsEndWithTheAuthorityOfTheirCertificates) {
  const Identity authority = MakeAuthority("of the server");
  const Identity old_authority = MakeAuthority("old");
  const Identity new_authority = MakeAuthority("new");
  const Identity localhost = MakeIdentity("localhost", authority);
  TlsFiles tls{
      .cert_chain = localhost.cert, .private_key = localhost.key, .client_ca = old_authority.cert};
  ServerConfig config;
  config.tls_client_ca = "given";
  TestServer server({}, config, tls);
  const auto client_of = [&](const Identity& identity) {
    return std::make_unique<GrpcClient>(
        server.grpc->address(),
        testing::GrpcClientOptions{
            .ca = authority.cert, .cert = identity.cert, .key = identity.key});
  };
  const auto code = [](GrpcClient& client) {
    return client.Generate(Prompt(), {.timeout = absl::Seconds(5)}).status.code();
  };
  const auto old_client = client_of(MakeIdentity("alice", old_authority));
  EXPECT_EQ(code(*old_client), absl::StatusCode::kOk);
  // While the file has both authorities, nobody is cut off.
  tls.client_ca = old_authority.cert + new_authority.cert;
  ASSERT_TRUE(server.grpc->SetTls(tls).ok());
  const auto new_client = client_of(MakeIdentity("alice", new_authority));
  EXPECT_EQ(code(*new_client), absl::StatusCode::kOk);
  EXPECT_EQ(code(*old_client), absl::StatusCode::kOk);
  const uint64_t accepted = server.door_counters.accepted;
  tls.client_ca = new_authority.cert;
  ASSERT_TRUE(server.grpc->SetTls(tls).ok());
  EXPECT_EQ(code(*old_client), absl::StatusCode::kUnavailable);
  EXPECT_EQ(server.door_counters.cut.Get(static_cast<size_t>(door::Cut::kCertificate)), 1u);
  EXPECT_EQ(code(*new_client), absl::StatusCode::kOk);
  EXPECT_GT(server.door_counters.accepted, accepted) << "the old client tried to connect again";
}

TEST(TlsTest, NamesOfAnotherKindAreOtherCallers) {
  const Identity authority = MakeAuthority("authority");
  const Identity localhost = MakeIdentity("localhost", authority);
  ServerConfig config;
  config.tls_client_ca = "given";
  TestServer server(
      {}, config,
      {.cert_chain = localhost.cert, .private_key = localhost.key, .client_ca = authority.cert});
  const auto caller = [&](const std::string& common_name, const std::string& alternative_names) {
    const Identity identity = MakeIdentity(common_name, alternative_names, authority);
    GrpcClient client(server.grpc->address(),
                      {.ca = authority.cert, .cert = identity.cert, .key = identity.key});
    const absl::Status status = client.Generate(Prompt()).status;
    EXPECT_TRUE(status.ok()) << status;
    return server.engine.last_params().owner;
  };
  // A name that reads as what it is, is the caller's name. The first one counts.
  EXPECT_EQ(caller("x", "DNS:alice,URI:spiffe://a/b"), "alice");
  EXPECT_EQ(caller("x", "URI:spiffe://a/b"), "spiffe://a/b");
  EXPECT_EQ(caller("x", "email:alice@example.com"), "alice@example.com");
  EXPECT_EQ(caller("x", "IP:10.0.0.1"), "10.0.0.1");
  EXPECT_EQ(caller("Olga Operator", ""), "Olga Operator");
  // The same texts as names of other kinds.
  EXPECT_EQ(caller("x", "URI:alice"), "URI:alice");
  EXPECT_EQ(caller("x", "DNS:spiffe://a/b"), "DNS:spiffe://a/b");
  EXPECT_EQ(caller("x", "URI:alice@example.com"), "URI:alice@example.com");
  EXPECT_EQ(caller("x", "DNS:10.0.0.1"), "DNS:10.0.0.1");
  EXPECT_EQ(caller("x", "URI:DNS:10.0.0.1"), "URI:DNS:10.0.0.1");
}

}  // namespace
}  // namespace quire::server
