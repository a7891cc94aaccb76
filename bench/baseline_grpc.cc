#include <grpcpp/grpcpp.h>
#include <string>
#include <utility>

#include "baselines.h"
#include "child.h"
#include "echo.grpc.pb.h"

#include "orbitkv/base/check.h"

namespace orbitkv::bench {
namespace {

class EchoService final : public Echo::CallbackService {
  grpc::ServerUnaryReactor* Call(grpc::CallbackServerContext* context, const EchoMessage* request,
                                 EchoMessage* reply) override {
    reply->set_payload(request->payload());
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

void Serve(const std::string& address) {
  EchoService service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  ORBITKV_CHECK(server != nullptr);
  server->Wait();
}

class GrpcEcho final : public RoundTrip {
 public:
  GrpcEcho(const std::string& address, Child child)
      : child_(std::move(child)),
        channel_(grpc::CreateChannel(address, grpc::InsecureChannelCredentials())),
        stub_(Echo::NewStub(channel_)) {
    ORBITKV_CHECK(channel_->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(20)));
    request_.set_payload(std::string(64, 'x'));
  }
  void Call() override {
    grpc::ClientContext context;
    const grpc::Status status = stub_->Call(&context, request_, &reply_);
    ORBITKV_CHECK(status.ok() && reply_.payload().size() == 64);
  }

 private:
  Child child_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<Echo::Stub> stub_;
  EchoMessage request_;
  EchoMessage reply_;
};

}  // namespace

std::unique_ptr<RoundTrip> MakeGrpcEcho(int peer_cpu, const std::string& socket_path) {
  const std::string address = "unix:" + socket_path;
  Child child = Child::Fork(peer_cpu, [address] { Serve(address); });
  return std::make_unique<GrpcEcho>(address, std::move(child));
}

}  // namespace orbitkv::bench
