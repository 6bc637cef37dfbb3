//! The gRPC transport: the calls of a backend over HTTP/2.
//!
//! [`GrpcTransport`] turns each call of [`Transport`](xmtp_core::transport::Transport) into one
//! request and each status into one [`TransportError`](xmtp_core::transport::TransportError). It
//! never repeats a call, never looks into an envelope, and keeps nothing but its connections: one
//! for calls and one for streams, so that a stream that is full never holds up a call.
//!
//! A transport connects when it is first used and again whenever its connection is gone. Making
//! one opens nothing and needs no runtime; using it needs tokio.
//!
//! ```
//! use std::time::Duration;
//!
//! use xmtp_transport_grpc::GrpcTransport;
//!
//! # fn main() -> Result<(), xmtp_transport_grpc::ConnectError> {
//! let transport = GrpcTransport::connect_lazy("http://127.0.0.1:5050")?;
//!
//! let patient = GrpcTransport::builder("https://backend.example")
//!     .app_version("notes/1.4.0")
//!     .request_timeout(Duration::from_secs(120))
//!     .connect_lazy()?;
//! # drop((transport, patient));
//! # Ok(())
//! # }
//! ```
//!
//! When you want another crate: repeating reads and tracing are layers in
//! `xmtp_core::transport::layer`; a backend without a socket, and faults, are in `xmtp_testkit`.

mod builder;
mod dial;
mod headers;
mod size;
mod status;
mod stream;
mod transport;

pub use builder::{Builder, ConnectError, DEFAULT_CONNECT_TIMEOUT, DEFAULT_REQUEST_TIMEOUT};
pub use status::classify_status;
pub use transport::GrpcTransport;
