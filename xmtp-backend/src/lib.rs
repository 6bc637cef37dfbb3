//! The server: library and binary.
//!
//! A backend keeps ordered topics of opaque envelopes and hands them out: it admits what clients
//! publish, answers their reads, and streams what becomes visible. It holds no message in the
//! clear and no state of any group.
//!
//! ```
//! use xmtp_backend::{Backend, Config};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let running = Backend::start(Config::ephemeral("org.example.test")).await?;
//! assert!(running.endpoint().starts_with("http://127.0.0.1:"));
//! running.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! The rooms, from the outside in:
//!
//! - [`config`]: what an operator decides, checked before anything starts;
//! - `auth`: who may call;
//! - `edge`: the port, and what every request passes before and after the services;
//! - [`Services`]: the calls of the wire, with and without a socket;
//! - `validate`: what may be stored, per kind of envelope;
//! - `session` and `stream`: one subscription as a machine without I/O, and what waits around it;
//! - `chain`: what wallets on a chain say about signatures;
//! - [`store`]: where envelopes are kept, a trait and its engines;
//! - [`Telemetry`]: the numbers, the log and the spans;
//! - `maintenance`: what has expired goes, and a restored database is fenced;
//! - [`hooks`]: the clock, and the points at which a test may hold or fail the server.
//!
//! When you want another crate: the messages and the limits are in `xmtp_proto`, the rules of
//! identity updates in `xmtp_identity`, a client in `xmtp`.

mod auth;
mod chain;
pub mod config;
mod edge;
pub mod hooks;
mod limits;
mod maintenance;
mod server;
mod services;
mod session;
pub mod store;
mod stream;
mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
mod validate;
mod warden;

pub use auth::{KeySetError, KeySetFailure};
pub use config::{Config, ConfigError};
pub use server::{Backend, Ended, Running, StartError};
pub use services::{Frames, Services, StaticFrames};
pub use telemetry::{Telemetry, TelemetryError};
