//! How a call ended, told from within gRPC-Web to whoever counts outside of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use tonic::Code;

/// No code of gRPC.
const NONE: i32 = -1;

/// The code of one call; it stands in the extensions of its request.
#[derive(Clone, Debug)]
pub(super) struct Outcome(Arc<AtomicI32>);

impl Outcome {
    pub(super) fn new() -> Self {
        Self(Arc::new(AtomicI32::new(NONE)))
    }

    pub(super) fn set(&self, code: Code) {
        self.0.store(code as i32, Ordering::Relaxed);
    }

    /// Returns the code; a call that was given up before it had one is cancelled.
    pub(super) fn code(&self) -> Code {
        match self.0.load(Ordering::Relaxed) {
            NONE => Code::Cancelled,
            code => Code::from_i32(code),
        }
    }
}
