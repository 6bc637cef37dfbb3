//! The transport suite over gRPC on a real socket.

use libtest_mimic::{Arguments, Failed, Trial};
use xmtp_testkit::TestBackend;
use xmtp_testkit::suite::{BackendHarness, trials};
use xmtp_transport_grpc::GrpcTransport;

fn main() {
    let harness = BackendHarness {
        name: "grpc",
        connect: |backend: &TestBackend| {
            let transport = GrpcTransport::builder(backend.endpoint()).app_version("suite/1");
            Box::new(
                transport
                    .connect_lazy()
                    .expect("the endpoint of a backend is a URL"),
            )
        },
    };
    let trials = trials(harness)
        .into_iter()
        .map(|(name, trial)| Trial::test(name, move || trial().map_err(Failed::from)))
        .collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
