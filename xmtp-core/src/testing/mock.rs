//! Mocks of the seams, for tests that expect single calls. A call that was not expected panics.
//!
//! Most tests want what behaves like the real thing instead: [`memory`](super::memory) and
//! [`faulty`](super::faulty) for storage, [`scripted`](super::scripted) for the wire and the
//! processors, and the simulated [`runtime`](crate::runtime) for time.

mod processor;
mod runtime;
mod storage;
mod transport;

pub use processor::{
    MockCandidate, MockGroupProcessor, MockIdentityProcessor, MockTurn, MockWelcomeProcessor,
};
pub use runtime::{MockLane, MockRuntime};
pub use storage::{MockSnapshot, MockStorage, MockWriter};
pub use transport::{MockSubscriptionRequests, MockTransport};
