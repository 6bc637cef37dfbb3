//! What tests stand on: a real backend, wires that lead to it, faults, and processes to kill.
//!
//! Nothing here imitates a backend. [`TestBackend`] runs the real one, on a socket and without;
//! [`FaultTransport`] breaks what passes over any wire, by a script that prints itself; and
//! [`process`] runs a part of a test in a process that can be killed and stopped. Only ever a
//! dev-dependency.
//!
//! ```
//! use xmtp_core::transport::Transport;
//! use xmtp_testkit::{TestBackend, mls_bytes};
//! use xmtp_transport_grpc::GrpcTransport;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut backend = TestBackend::start().await;
//! let transport = GrpcTransport::connect_lazy(backend.endpoint())?;
//!
//! let envelope = mls_bytes::group_message([7; 16], b"not really encrypted");
//! let request = xmtp_proto::backend::v1::PublishRequest { envelopes: vec![envelope] };
//! assert_eq!(transport.publish(request).await?.envelope_metas.len(), 1);
//! backend.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! When you want another crate: doubles of a transport or a storage engine without any backend,
//! and the suites as such, are in `xmtp_core::testing`.

mod backend;
mod clock;
mod fault;
pub mod fuzz;
mod in_process;
pub mod mls_bytes;
#[cfg(unix)]
pub mod process;
pub mod rogue;
pub mod scenario;
pub mod suite;

pub use backend::{IDENTIFIER, TestBackend};
pub use clock::ShiftedRuntime;
pub use fault::{Fault, FaultTransport, Script};
pub use in_process::InProcessTransport;
