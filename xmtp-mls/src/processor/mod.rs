//! The processors behind core's seams: what one envelope means under MLS and XMTP's rules.
//!
//! Everything here runs inside the write transaction it is handed, decides from the ordered
//! prefix, the installed state and verified proofs alone, and keeps no openmls object past the
//! transaction.

mod commit;
mod group;
mod identity;
mod permission;
mod prepare;
mod validate;
mod verdict;
mod welcome;

use std::fmt;
use std::sync::Arc;

use xmtp_core::processing::Processors;

pub(crate) use identity::decode as decode_state;
pub use permission::judge;

use crate::Installation;

/// Decides envelopes with openmls for one installation.
#[derive(Clone)]
pub struct MlsProcessor {
    installation: Arc<Installation>,
}

impl fmt::Debug for MlsProcessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("mls(openmls)")
    }
}

impl MlsProcessor {
    /// Makes a processor.
    pub fn new(installation: Arc<Installation>) -> Self {
        Self { installation }
    }

    /// Makes the set of processors that an engine takes.
    pub fn processors(&self) -> Processors {
        Processors {
            group: Arc::new(self.clone()),
            identity: Arc::new(self.clone()),
            welcome: Arc::new(self.clone()),
        }
    }
}
