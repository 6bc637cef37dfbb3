//! The transport suite over the calls of a backend without a socket.

use libtest_mimic::{Arguments, Failed, Trial};
use xmtp_testkit::TestBackend;
use xmtp_testkit::suite::{BackendHarness, trials};

fn main() {
    let harness = BackendHarness {
        name: "in_process",
        connect: |backend: &TestBackend| Box::new(backend.in_process()),
    };
    let trials = trials(harness)
        .into_iter()
        .map(|(name, trial)| Trial::test(name, move || trial().map_err(Failed::from)))
        .collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
