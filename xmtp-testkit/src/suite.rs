//! The transport suite of core over a real backend, for the test of any wire.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use async_trait::async_trait;
use tokio::runtime::Runtime;
use tokio::sync::Mutex;
use xmtp_core::testing::transport_suite::{TRANSPORT_CASES, TransportCase, TransportFixture};
use xmtp_core::transport::Transport;
use xmtp_proto::backend::v1;

use crate::{TestBackend, mls_bytes};

/// How long one case may take before it has failed.
const CASE_DEADLINE: Duration = Duration::from_secs(60);

/// One wire to a backend.
#[derive(Clone, Copy, Debug)]
pub struct BackendHarness {
    /// Names the wire; unique within a test binary.
    pub name: &'static str,
    /// Makes a transport to a backend.
    pub connect: fn(&TestBackend) -> Box<dyn Transport>,
}

/// One case bound to one wire, for a harness to run.
pub type Trial = Box<dyn FnOnce() -> Result<(), String> + Send>;

/// Binds every case of the suite to a wire; each runs against a backend of its own.
pub fn trials(harness: BackendHarness) -> Vec<(String, Trial)> {
    let bind = |case: &'static TransportCase| {
        let trial: Trial = Box::new(move || check(case, harness));
        (format!("{}::{}", harness.name, case.name), trial)
    };
    TRANSPORT_CASES.iter().map(bind).collect()
}

/// Runs one case; the error is for a person, what an assertion said is on the standard error.
fn check(case: &TransportCase, harness: BackendHarness) -> Result<(), String> {
    let checked = catch_unwind(AssertUnwindSafe(|| {
        let runtime = Runtime::new().map_err(|error| error.to_string())?;
        runtime.block_on(async {
            let fixture = Fixture::start(harness).await;
            let run = tokio::time::timeout(CASE_DEADLINE, (case.run)(&fixture)).await;
            fixture.stop_backend().await;
            run.map_err(|_| format!("not done after {CASE_DEADLINE:?}"))
        })
    }));
    checked.unwrap_or_else(|_| Err("an assertion failed".to_owned()))
}

struct Fixture {
    transport: Box<dyn Transport>,
    backend: Mutex<TestBackend>,
}

impl Fixture {
    async fn start(harness: BackendHarness) -> Self {
        let backend = TestBackend::start().await;
        Self {
            transport: (harness.connect)(&backend),
            backend: Mutex::new(backend),
        }
    }
}

fn group_id(topic_seed: u8) -> [u8; 16] {
    [topic_seed; 16]
}

#[async_trait]
impl TransportFixture for Fixture {
    fn transport(&self) -> &dyn Transport {
        &*self.transport
    }

    fn topic(&self, topic_seed: u8) -> v1::Topic {
        mls_bytes::group_topic(group_id(topic_seed)).to_proto()
    }

    fn envelope(&self, topic_seed: u8, n: u32) -> v1::ClientEnvelope {
        mls_bytes::group_message(group_id(topic_seed), &n.to_be_bytes())
    }

    fn envelope_of(&self, topic_seed: u8, encoded_bytes: usize) -> v1::ClientEnvelope {
        mls_bytes::group_message_of(group_id(topic_seed), encoded_bytes)
    }

    async fn stop_backend(&self) {
        self.backend.lock().await.stop().await;
    }
}
